/* Reads pieces of a file, and copies the spans of bytes that they hold to where they go, in one call from Python. */

#ifndef PIXPACK_READS_H
#define PIXPACK_READS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if defined(__unix__) || defined(__APPLE__)
#define HAS_READS 1
#endif

extern const char read_spans_doc[];
PyObject *read_spans(PyObject *module, PyObject *args);

#endif
