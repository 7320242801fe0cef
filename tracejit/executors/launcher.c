/* Calls a region's kernels: one METH_FASTCALL function for all regions, each with a descriptor of its own.
   No headers: only what every CPython exports. */
typedef struct PyObject PyObject;
typedef long Py_ssize_t;
typedef struct { const char *name; void *function; int flags; const char *doc; } PyMethodDef;
extern PyObject _Py_NoneStruct;
extern void Py_IncRef(PyObject *), Py_DecRef(PyObject *);
extern PyObject *PyObject_Vectorcall(PyObject *, PyObject *const *, unsigned long, PyObject *), *PyTuple_GetItem(PyObject *, Py_ssize_t);
extern PyObject *PyLong_FromLong(long), *PyList_New(Py_ssize_t), *PyTuple_New(Py_ssize_t);
extern void *PyLong_AsVoidPtr(PyObject *), *PyEval_SaveThread(void);
extern long PyLong_AsLong(PyObject *);
extern int PyList_SetItem(PyObject *, Py_ssize_t, PyObject *), PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);
extern void PyEval_RestoreThread(void *);

/* Tensors are numbered: the arguments, then what is made. `makers`: a callable and its `arguments` for each tensor made.
   threads: a callable that tells how many there are, 0 when the work is one thread's; unlocked: let other threads run.
   buffer: of each pointer, the tensor; -1: `offset` is the pointer itself.
   written: of each storage that is written, a tensor, given to `changed` afterwards: autograd must know. */
typedef struct {
  int (*entry)(int, void *const *);
  void *(*data)(PyObject *);
  PyObject *threads, *fail, *changed;
  long arguments, made, buffers, results, unlocked, writes;
  const long *buffer, *offset, *result, *written;
  PyObject *const *makers, *const *const *maker_arguments;
  const long *maker_counts;
} Region;

static int tell_autograd(const Region *r, PyObject *const *tensors) {
  PyObject *written = PyTuple_New(r->writes), *done;
  if (!written) return -1;
  for (long i = 0; i < r->writes; i++) {
    Py_IncRef(tensors[r->written[i]]);
    PyTuple_SetItem(written, i, tensors[r->written[i]]);
  }
  done = PyObject_Vectorcall(r->changed, &written, 1, 0);
  Py_DecRef(written);
  if (!done) return -1;
  Py_DecRef(done);
  return 0;
}

static int run(const Region *r, PyObject *const *tensors) {
  void *pointers[r->buffers + 1], *state = 0;
  long threads = 1;
  for (long i = 0; i < r->buffers; i++)
    pointers[i] = r->buffer[i] < 0 ? (void *)r->offset[i] : (char *)r->data(tensors[r->buffer[i]]) - r->offset[i];
  if (r->threads) {
    PyObject *count = PyObject_Vectorcall(r->threads, 0, 0, 0);
    if (!count) return -1;
    threads = PyLong_AsLong(count);
    Py_DecRef(count);
  }
  if (r->unlocked) state = PyEval_SaveThread();
  int bad = r->entry((int)threads, pointers);
  if (r->unlocked) PyEval_RestoreThread(state);
  if (bad) {
    PyObject *code = PyLong_FromLong(bad), *failed = code ? PyObject_Vectorcall(r->fail, &code, 1, 0) : 0;
    if (code) Py_DecRef(code);
    if (failed) Py_DecRef(failed);
    return failed ? 0 : -1;
  }
  return r->writes ? tell_autograd(r, tensors) : 0;
}

static PyObject *launch(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  const Region *r = PyLong_AsVoidPtr(PyTuple_GetItem(self, 0));
  PyObject *tensors[r->arguments + r->made + 1], *results = 0;
  long n = 0;
  for (long i = 0; i < r->arguments; i++) tensors[i] = arguments[i];
  for (; n < r->made; n++)
    if (!(tensors[r->arguments + n] = PyObject_Vectorcall(r->makers[n], r->maker_arguments[n], r->maker_counts[n], 0))) break;
  if (n == r->made && run(r, tensors) == 0 && (results = PyList_New(r->results)))
    for (long i = 0; i < r->results; i++) {
      Py_IncRef(tensors[r->result[i]]);
      PyList_SetItem(results, i, tensors[r->result[i]]);
    }
  for (long i = 0; i < n; i++) Py_DecRef(tensors[r->arguments + i]);
  return results;
}

PyMethodDef tj_launch = {"launch", launch, 0x80, 0};
