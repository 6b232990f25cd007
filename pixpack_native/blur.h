/* A picture blurred by weights of its own, first down, then across; beyond its edges it is reflected. */

#ifndef PIXPACK_BLUR_H
#define PIXPACK_BLUR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char blur_doc[];
PyObject *blur(PyObject *module, PyObject *args);

#endif
