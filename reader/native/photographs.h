/* Files become rows, many in one call of Python. */

#ifndef PIXPACK_PHOTOGRAPHS_H
#define PIXPACK_PHOTOGRAPHS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* It reads files as Unix has them. */
#ifdef __unix__
#define HAS_PHOTOGRAPHS 1
extern const char photographs_doc[];
PyObject *photographs(PyObject *module, PyObject *args);
#endif

#endif
