/* Headers of a tar's members. */

#ifndef PIXPACK_TAR_HEADERS_H
#define PIXPACK_TAR_HEADERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char tar_members_doc[];
PyObject *tar_members(PyObject *module, PyObject *args);

#endif
