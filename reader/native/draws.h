/* Finds the draws of one row in one call from Python. */

#ifndef PIXPACK_DRAWS_H
#define PIXPACK_DRAWS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char find_draws_doc[];
PyObject *find_draws(PyObject *module, PyObject *args);

#endif
