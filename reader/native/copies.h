/* Copies spans of bytes in one call from Python, past the caches where asked. */

#ifndef PIXPACK_COPIES_H
#define PIXPACK_COPIES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char copy_spans_doc[];
PyObject *copy_spans(PyObject *module, PyObject *args);

#endif
