/* Crops, resizes and mirrors boxes of many images in one call from Python. */

#ifndef PIXPACK_CROPS_H
#define PIXPACK_CROPS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char crops_doc[];
PyObject *crops(PyObject *module, PyObject *args);

#endif
