/* Copies rows of a table in one call from Python, past the caches. */

#ifndef PIXPACK_COPIES_H
#define PIXPACK_COPIES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char copy_rows_doc[];
PyObject *copy_rows(PyObject *module, PyObject *args);

#endif
