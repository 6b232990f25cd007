/* Changes the images of a batch step by step, and converts levels to floats, in one call from Python. */

#ifndef PIXPACK_AUGMENT_H
#define PIXPACK_AUGMENT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char augment_doc[], floats_doc[];
PyObject *augment(PyObject *module, PyObject *args);
PyObject *floats(PyObject *module, PyObject *args);

#endif
