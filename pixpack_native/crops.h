/* Boxes of many images cropped, resized and mirrored, in one call of Python. */

#ifndef PIXPACK_CROPS_H
#define PIXPACK_CROPS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char crops_doc[];
PyObject *crops(PyObject *module, PyObject *args);

#endif
