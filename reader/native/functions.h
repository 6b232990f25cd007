/* The functions that native.c exports to Python, and their docstrings; each is in the file of its subject. */

#ifndef PIXPACK_FUNCTIONS_H
#define PIXPACK_FUNCTIONS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if defined(__unix__) || defined(__APPLE__)
#define HAS_READS 1
#endif

extern const char augment_doc[], copy_spans_doc[], crops_doc[], floats_doc[], read_spans_doc[];

PyObject *augment(PyObject *module, PyObject *args);
PyObject *copy_spans(PyObject *module, PyObject *args);
PyObject *crops(PyObject *module, PyObject *args);
PyObject *floats(PyObject *module, PyObject *args);
PyObject *read_spans(PyObject *module, PyObject *args);

#endif
