/* What compressed rows hold of pixels, both ways. */

#ifndef PIXPACK_PREDICTOR_H
#define PIXPACK_PREDICTOR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char predict_doc[], restore_doc[];
PyObject *predict(PyObject *module, PyObject *args);
PyObject *restore(PyObject *module, PyObject *args);

#endif
