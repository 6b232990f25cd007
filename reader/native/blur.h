/* Blurs a picture with its own weights, vertically, then horizontally, with reflected edges. */

#ifndef PIXPACK_BLUR_H
#define PIXPACK_BLUR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char blur_doc[];
PyObject *blur(PyObject *module, PyObject *args);

#endif
