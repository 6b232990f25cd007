/* Images of a batch changed step by step, and levels made floats, in one call of Python. */

#ifndef PIXPACK_AUGMENT_H
#define PIXPACK_AUGMENT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char augment_doc[], floats_doc[];
PyObject *augment(PyObject *module, PyObject *args);
PyObject *floats(PyObject *module, PyObject *args);

#endif
