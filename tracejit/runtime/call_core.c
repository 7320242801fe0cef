/* Calls in C: the key of the arguments finds its candidates, their checks of state pick one, and its program runs.
   Whatever is not told here goes to `_missed` of the Python class, which knows everything. Read after call_key.c. */
extern PyObject *PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *);
extern PyObject *PyObject_VectorcallMethod(PyObject *, PyObject *const *, size_t, PyObject *);
extern PyObject *PyObject_GenericGetDict(PyObject *, void *), *PyDict_GetItemWithError(PyObject *, PyObject *);
extern PyObject *PyCell_Get(PyObject *), *PyFunction_GetCode(PyObject *), *PyWeakref_GetObject(PyObject *);
extern PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t), *PyTuple_New(Py_ssize_t), *PyList_New(Py_ssize_t);
extern Py_ssize_t PyObject_Size(PyObject *);
extern PyObject *PyDict_New(void), *PyLong_FromLong(long), *PyVectorcall_Call(PyObject *, PyObject *, PyObject *);
extern int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *), PyList_SetItem(PyObject *, Py_ssize_t, PyObject *);
extern int PyDict_SetItem(PyObject *, PyObject *, PyObject *), PyObject_IsTrue(PyObject *);
extern PyObject *PyCapsule_New(void *, const char *, void (*)(PyObject *));
extern void *PyCapsule_GetPointer(PyObject *, const char *);
extern void PyErr_Fetch(PyObject **, PyObject **, PyObject **), PyErr_Restore(PyObject *, PyObject *, PyObject *);
extern void PyErr_NormalizeException(PyObject **, PyObject **, PyObject **);
extern int PyException_SetTraceback(PyObject *, PyObject *);

/* ---- candidates: what is checked besides the key, where inputs are found, what runs. Filled in by call_core.py, which keeps
   them alive by their `owner`. */
enum { OWNER, HELD, ARGUMENT_AS_OWNER, TABLE, CLASS_TABLE, SPACE, NAME, ABSENT_NAME, CLASS, CELL, CODE, ATTRIBUTE, RESIDUE,
       RESULTS };                                                                      /* Check.what */
enum { IS, IS_REFERENT, HAS_TYPE, HAS_ITEMS };                                         /* Check.how */
enum { DICT_ITEMS, LIST_ITEMS, TUPLE_ITEMS, DEFAULT_DICT };                            /* Check.container */
enum { ARGUMENT, STATE, GRADIENT };                                                    /* Source.kind */
enum { ITEM, AS_TUPLE, AS_LIST, BUILT };                                               /* Candidate.result */
enum { OF_CALL, OF_INPUTS, CONSTANT };                                                 /* Value.from */
typedef struct Check {             /* items: of a container; their `object` is the key in a dict, or `how_key` a reference to it */
  int64_t what, how, how_key, container;
  PyObject *object, *expected;
  int64_t slot, item_count;
  struct Check *items;
  PyObject *met;                   /* a name: what it held when its table was last read */
  uint64_t table, versions[2];     /* a table: which one that was, and its version and that of the instance's dictionary */
} Check;
typedef struct { int64_t kind, index; } Source;
typedef struct { int64_t from, index; PyObject *value; } Value;
typedef struct {
  PyObject *owner, *run, *build, *finish, *names;
  Check *checks;
  const Source *sources, *others;
  const Value *arguments, *outputs;        /* of a program that is one call; names: of the last arguments; single: it makes no list */
  int64_t check_count, slot_count, source_count, other_count, argument_count, output_count, single, result;
  int64_t alone, word_count;       /* alone: the inputs are the arguments, which the key has told all about */
  const uint64_t *words;
} Candidate;

enum { MOST_CANDIDATES = 8 };
typedef struct Bucket {
  struct Bucket *next;
  uint64_t hash;
  int64_t count, candidates;
  Candidate *candidate[MOST_CANDIDATES];
  uint64_t words[];
} Bucket;
typedef struct { Bucket **buckets; int64_t size, used, hits; } Table;

static void free_table(PyObject *capsule) {
  Table *t = PyCapsule_GetPointer(capsule, 0);
  for (int64_t i = 0; i < t->size; i++)
    for (Bucket *b = t->buckets[i], *next; b; b = next) next = b->next, free(b);
  free(t->buckets), free(t);
}

static Bucket *find_bucket(const Table *t, const uint64_t *words, int64_t count, uint64_t hash) {
  for (Bucket *b = t->buckets[hash & (t->size - 1)]; b; b = b->next)
    if (b->hash == hash && b->count == count && !memcmp(b->words, words, 8 * count)) return b;
  return 0;
}

static void grow_table(Table *t) {
  int64_t size = 2 * t->size;
  Bucket **buckets = calloc(size, sizeof *buckets);
  if (!buckets) return;
  for (int64_t i = 0; i < t->size; i++)
    for (Bucket *b = t->buckets[i], *next; b; b = next)
      next = b->next, b->next = buckets[b->hash & (size - 1)], buckets[b->hash & (size - 1)] = b;
  free(t->buckets), t->buckets = buckets, t->size = size;
}

/* ---- checks of state: 1 when all hold, and `slots` has the tensors that were met; 0 else (a Python error may be set) */
static int value_holds(const Check *, PyObject *, PyObject **);
static int key_is(const Check *c, PyObject *key) { return key == (c->how_key == IS ? c->object : PyWeakref_GetObject(c->object)); }

/* The first item of a defaultdict stands for its factory. */
static int factory_holds(const Check *c, PyObject *value, PyObject **slots) {
  PyObject *factory = PyObject_GetAttr(value, L.name_factory);
  int holds = value_holds(c, factory, slots);
  if (factory) Py_DecRef(factory);
  return holds;
}

static int items_hold(const Check *c, PyObject *value, PyObject **slots) {
  if (value->type != c->expected) return 0;
  const Check *item = c->items, *end = item + c->item_count;
  Py_ssize_t at = 0;
  PyObject *key, *held;
  if (c->container == DEFAULT_DICT && !factory_holds(item++, value, slots)) return 0;
  if (PyObject_Size(value) != end - item) return 0;
  for (; item < end; item++) {
    if (c->container == LIST_ITEMS) held = PyList_GetItem(value, at++);
    else if (c->container == TUPLE_ITEMS) held = PyTuple_GetItem(value, at++);
    else if (!PyDict_Next(value, &at, &key, &held) || !key_is(item, key)) return 0;
    if (!value_holds(item, held, slots)) return 0;
  }
  return 1;
}

static int value_holds(const Check *c, PyObject *value, PyObject **slots) {
  if (!value) return 0;
  if (c->how == IS) return value == c->expected;
  if (c->how == HAS_ITEMS) return items_hold(c, value, slots);
  if (c->how == IS_REFERENT) return value == PyWeakref_GetObject(c->expected);
  if (c->slot >= 0) slots[c->slot] = value;
  return value->type == c->expected;
}

static int residue_holds(PyObject *check) {
  PyObject *none = &_Py_NoneStruct, *told = PyObject_Vectorcall(check, &none, 1, 0);
  int holds = told ? PyObject_IsTrue(told) == 1 : 0;
  if (told) Py_DecRef(told);
  return holds;
}

/* What a cache keeps, of results that are told by what they are alone: looked at anew when its dictionary was written. */
static int results_hold(Check *c) {
  uint64_t version = L.dict_version ? field(c->expected, L.dict_version) : 0;
  if (version && version == c->versions[0]) return 1;
  c->versions[0] = 0;
  int holds = residue_holds(c->object);
  if (holds) c->versions[0] = version;
  return holds;
}

typedef struct { const Key *call; PyObject *owner, *names, *table; Check *reading; int unchanged; } Cursor;

/* A table is at hand: is it as it was when it was last read? Then its names are not looked up again. */
static int at_table(Check *c, Cursor *at) {
  uint64_t versions[2] = {0, 0};
  if (L.dict_version) versions[0] = field(at->table, L.dict_version), versions[1] = field(at->names, L.dict_version);
  at->unchanged = versions[0] && c->table == (uint64_t)at->table && c->versions[0] == versions[0] && c->versions[1] == versions[1];
  at->reading = at->unchanged ? 0 : c;
  c->table = (uint64_t)at->table, c->versions[0] = versions[0], c->versions[1] = versions[1];
  return 1;
}

static int owner_found(Cursor *at, PyObject *owner) {
  if (at->names) Py_DecRef(at->names);
  at->owner = owner, at->names = at->table = 0;
  return owner && owner != &_Py_NoneStruct;
}

static int check_holds(Check *c, Cursor *at, PyObject **slots) {
  PyObject *value;
  int holds;
  switch (c->what) {
  case OWNER: return owner_found(at, PyWeakref_GetObject(c->object));
  case HELD: return owner_found(at, c->object);
  case ARGUMENT_AS_OWNER: return owner_found(at, c->slot < at->call->found ? at->call->tensors[c->slot] : 0);
  case TABLE:                      /* the instance's dictionary, or a dictionary in it */
    if (!at->names && at->owner->type == L.dict) Py_IncRef(at->names = at->owner);
    else if (!at->names && !(at->names = PyObject_GenericGetDict(at->owner, 0))) return 0;
    at->table = c->object ? PyDict_GetItemWithError(at->names, c->object) : at->names;
    return at->table && at->table->type == L.dict && at_table(c, at);
  case CLASS_TABLE:                /* which lives as long as the class */
    at->table = at->names = c->object;
    return Py_IncRef(at->names), at_table(c, at);
  case SPACE: return value_holds(c, at->table, slots);
  case NAME:                       /* an attribute hides what a table has under its name */
    if (at->unchanged && c->how != HAS_ITEMS) return c->slot < 0 || (slots[c->slot] = c->met);       /* it held then */
    if (at->unchanged) return value_holds(c, c->met, slots);
    if (at->table != at->names && PyDict_GetItemWithError(at->names, c->object)) return 0;
    return value_holds(c, c->met = PyDict_GetItemWithError(at->table, c->object), slots);
  case ABSENT_NAME:
    return at->unchanged || !PyDict_GetItemWithError(at->names, c->object) && !PyDict_GetItemWithError(at->table, c->object) && !PyErr_Occurred();
  case CLASS: return value_holds(c, at->owner->type, slots);
  case CODE: return value_holds(c, PyFunction_GetCode(at->owner), slots);
  case ATTRIBUTE: case CELL:
    value = c->what == CELL ? PyCell_Get(c->object) : PyObject_Vectorcall(c->object, &at->owner, 1, 0), holds = value_holds(c, value, slots);
    if (value) Py_DecRef(value);   /* the cell, or the owner, holds it */
    return holds;
  case RESULTS: return results_hold(c);        /* the owner, which is alive, keeps the dictionary */
  default: return residue_holds(c->object);
  }
}

static int state_holds(const Candidate *c, const Key *call, PyObject **slots) {
  Cursor at = {call, 0, 0, 0, 0, 0};
  int holds = 1;
  for (int64_t i = 0; holds && i < c->check_count; i++) holds = check_holds(c->checks + i, &at, slots);
  if (!holds && at.reading) at.reading->table = 0;     /* not all of its names were read */
  if (at.names) Py_DecRef(at.names);
  return holds;
}

/* ---- inputs: the tensors of the arguments, and those that state or a gradient holds */
static PyObject *source_value(const Source *s, const Key *call, PyObject *const *inputs, PyObject *const *slots) {
  PyObject *value = s->kind == ARGUMENT ? s->index < call->found ? call->tensors[s->index] : 0 : s->kind == STATE ? slots[s->index]
    : PyObject_GetAttr(inputs[s->index], L.name_grad);
  if (value && s->kind != GRADIENT) Py_IncRef(value);
  return value;
}

/* The inputs (new references; `n` tells how many were found) and the words of what is assumed of them. */
static int find_inputs(const Candidate *c, const Key *call, PyObject **inputs, int64_t *n, PyObject *const *slots, Key *key) {
  for (*n = 0; *n < c->source_count; ++*n) {
    PyObject *t = source_value(c->sources + *n, call, inputs, slots);
    if (!t) return 0;
    inputs[*n] = t;
    if ((t->type != L.tensor && t->type != L.parameter) || !tensor_words(key, t)) return ++*n, 0;
  }
  for (int64_t i = 0; i < c->other_count; i++) {       /* which of other places hold one and the same tensor */
    PyObject *t = slots[c->others[i].index];
    if (!want_words(key, 1) || !want_places(key)) return 0;
    Place *known = place_of(key->places, key->place_count, (uint64_t)t);
    if (!known->address) known->address = (uint64_t)t, known->number = 1ul << 32 | i, key->found++;
    key->words[key->count++] = AGAIN | known->number << 8;
  }
  return overlap_word(key);
}

/* ---- running */
static PyObject *result_of(const Candidate *c, PyObject *const *flat) {
  if (c->result == ITEM) return Py_IncRef(flat[0]), flat[0];
  PyObject *made = c->result == AS_LIST ? PyList_New(c->output_count) : PyTuple_New(c->output_count);
  if (!made) return 0;
  for (int64_t i = 0; i < c->output_count; i++) {
    Py_IncRef(flat[i]);
    c->result == AS_LIST ? PyList_SetItem(made, i, flat[i]) : PyTuple_SetItem(made, i, flat[i]);
  }
  if (c->result != BUILT) return made;
  PyObject *built = PyObject_Vectorcall(c->build, &made, 1, 0);
  Py_DecRef(made);
  return built;
}

/* The program is one call: a region's launcher or an operation is called without a program around it. */
static PyObject *run_call(const Candidate *c, PyObject *const *inputs) {
  PyObject *arguments[c->argument_count + 1], *flat[c->output_count + 1];
  for (int64_t i = 0; i < c->argument_count; i++)
    arguments[i] = c->arguments[i].from == OF_INPUTS ? inputs[c->arguments[i].index] : c->arguments[i].value;
  PyObject *made = PyObject_Vectorcall(c->run, arguments, c->argument_count - (c->names ? PyTuple_Size(c->names) : 0), c->names);
  if (!made) return 0;
  for (int64_t i = 0; i < c->output_count; i++) {
    const Value *o = c->outputs + i;
    flat[i] = o->from == OF_INPUTS ? inputs[o->index] : o->from == CONSTANT ? o->value : c->single ? made : PyList_GetItem(made, o->index);
  }
  PyObject *result = result_of(c, flat);
  Py_DecRef(made);
  return result;
}

static PyObject *run_program(const Candidate *c, PyObject *const *inputs, int64_t n) {
  PyObject *outputs = PyObject_Vectorcall(c->run, inputs, n, 0), *result;
  if (!outputs) return 0;
  if (c->result == AS_TUPLE && PyTuple_Size(outputs) == c->output_count) return outputs;
  PyObject *flat[c->output_count + 1];
  for (int64_t i = 0; i < c->output_count; i++) flat[i] = PyTuple_GetItem(outputs, i);
  result = c->result == BUILT ? PyObject_Vectorcall(c->build, &outputs, 1, 0) : result_of(c, flat);
  Py_DecRef(outputs);
  return result;
}

/* Tuple of the arguments, dictionary of the named ones: as Python functions take them. */
static int pack(PyObject *const *arguments, Py_ssize_t count, PyObject *names, PyObject **tuple, PyObject **named) {
  *tuple = PyTuple_New(count), *named = PyDict_New();
  for (Py_ssize_t i = 0; *tuple && i < count; i++) Py_IncRef(arguments[i]), PyTuple_SetItem(*tuple, i, arguments[i]);
  for (Py_ssize_t i = 0; names && *named && i < PyTuple_Size(names); i++)
    if (PyDict_SetItem(*named, PyTuple_GetItem(names, i), arguments[count + i])) return 0;
  return *tuple && *named;
}

/* A program that writes Python state: `finish(inputs, args, kwargs, tensors of the arguments)`. */
static PyObject *run_finishing(const Candidate *c, const Key *call, PyObject *const *inputs, int64_t n, PyObject *const *arguments,
                               Py_ssize_t count, PyObject *names) {
  PyObject *parts[4] = {PyList_New(n), 0, 0, PyList_New(call->found)}, *result = 0;
  int packed = pack(arguments, count, names, parts + 1, parts + 2);
  for (int64_t i = 0; parts[0] && i < n; i++) Py_IncRef(inputs[i]), PyList_SetItem(parts[0], i, inputs[i]);
  for (int64_t i = 0; parts[3] && i < call->found; i++) Py_IncRef(call->tensors[i]), PyList_SetItem(parts[3], i, call->tensors[i]);
  if (packed && parts[0] && parts[3]) result = PyObject_Vectorcall(c->finish, parts, 4, 0);
  for (int i = 0; i < 4; i++)
    if (parts[i]) Py_DecRef(parts[i]);
  return result;
}

/* The traceback of the error that is set becomes the user's. c: what ran, if it ran in C. */
static void trim_error(const Candidate *c) {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  if (traceback) PyException_SetTraceback(error, traceback);
  PyObject *arguments[2] = {error, c ? c->owner : &_Py_NoneStruct}, *trimmed = PyObject_Vectorcall(L.trimmed, arguments, 2, 0);
  if (!trimmed) PyErr_Clear();
  else {
    if (traceback) Py_DecRef(traceback);
    traceback = trimmed;
    if (traceback == &_Py_NoneStruct) Py_DecRef(traceback), traceback = 0;
  }
  PyErr_Restore(type, error, traceback);
}

/* 1: this candidate ran, and `result` is its result (0: an error is set); 0: its state is not the present one. */
static int try_candidate(const Candidate *c, Table *t, const Key *call, PyObject *const *arguments, Py_ssize_t count, PyObject *names,
                         PyObject **result) {
  PyObject *slots[c->slot_count + 1], *found[c->source_count + 1], *const *inputs = call->tensors;
  int64_t n = call->found, held = 0;
  int holds = 1;
  if (c->check_count) holds = state_holds(c, call, slots) && !PyErr_Occurred();
  if (holds && !c->alone) {
    Key key;
    key_open(&key);
    holds = find_inputs(c, call, found, &held, slots, &key) && key.count == c->word_count && !memcmp(key.words, c->words, 8 * key.count);
    key_close(&key);
    inputs = found, n = held;
  }
  if (!holds) PyErr_Clear();
  if (holds) {
    t->hits++;
    *result = c->finish ? run_finishing(c, call, inputs, n, arguments, count, names)
      : c->arguments ? run_call(c, inputs) : run_program(c, inputs, n);
    if (!*result) trim_error(c);
  }
  while (held--) Py_DecRef(found[held]);
  return holds;
}

/* ---- the callable: an instance of a Python class with two more fields at `fields` bytes. Before `tj_new_table` gives it `call`,
   it is called as its class says. */
typedef struct { PyObject *(*call)(PyObject *, PyObject *const *, size_t, PyObject *); PyObject *table; } Fields;
static long fields;
static Fields *fields_of(PyObject *self) { return (Fields *)((char *)self + fields); }

static PyObject *missed(PyObject *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names, const Key *key) {
  PyObject *parts[4] = {self, key ? PyBytes_FromStringAndSize((const char *)key->words, 8 * key->count) : &_Py_NoneStruct, 0, 0};
  PyObject *result = 0;
  if (pack(arguments, count, names, parts + 2, parts + 3) && parts[1]) result = PyObject_VectorcallMethod(L.name_missed, parts, 4, 0);
  if (key && parts[1]) Py_DecRef(parts[1]);
  if (parts[2]) Py_DecRef(parts[2]);
  if (parts[3]) Py_DecRef(parts[3]);
  return result;
}

static PyObject *call(PyObject *self, PyObject *const *arguments, size_t flagged, PyObject *names) {
  Py_ssize_t count = flagged & ~(1ul << 63);
  PyObject *capsule = fields_of(self)->table, *result = 0;
  Key key;
  key_open(&key);
  int told = key_words(&key, arguments, count, names), ran = 0;
  if (!told) PyErr_Clear();
  for (int64_t i = 0; i < key.found; i++) Py_IncRef(key.tensors[i]);       /* another thread may empty the list they are in */
  if (told && capsule) {
    Py_IncRef(capsule);
    Table *t = PyCapsule_GetPointer(capsule, 0);
    Bucket *b = find_bucket(t, key.words, key.count, hash_of(key.words, key.count));
    for (int64_t i = 0; b && !ran && i < b->candidates; i++) {
      Candidate *c = b->candidate[i];
      PyObject *owner = c->owner;
      Py_IncRef(owner);            /* another thread may take it out of the table */
      ran = try_candidate(c, t, &key, arguments, count, names, &result);
      if (ran && i && i < b->candidates && b->candidate[i] == c) b->candidate[i] = b->candidate[0], b->candidate[0] = c;
      Py_DecRef(owner);
    }
    Py_DecRef(capsule);
  }
  if (!ran && !(result = missed(self, arguments, count, names, told ? &key : 0))) trim_error(0);
  for (int64_t i = 0; i < key.found; i++) Py_DecRef(key.tensors[i]);
  key_close(&key);
  return result;
}

/* ---- for call_core.py */
/* at: bytes before the two fields, in all instances that there are. */
long tj_new_table(PyObject *self, long at) {
  fields = at;
  Table *t = calloc(1, sizeof *t);
  if (!t || !(t->buckets = calloc(8, sizeof *t->buckets))) return -1;
  t->size = 8;
  PyObject *old = fields_of(self)->table;
  fields_of(self)->call = call;
  fields_of(self)->table = PyCapsule_New(t, 0, free_table);
  if (!old) return 0;
  Table *left = PyCapsule_GetPointer(old, 0);          /* a call of another thread may be in it */
  for (int64_t i = 0; i < left->size; i++)
    for (Bucket *b = left->buckets[i]; b; b = b->next) b->candidates = 0;
  Py_DecRef(old);
  return 0;
}

long tj_hits(PyObject *self) {
  PyObject *capsule = fields_of(self)->table;
  return capsule ? ((Table *)PyCapsule_GetPointer(capsule, 0))->hits : 0;
}

/* The address of a candidate that gives way, 0 when none does, -1 without memory. */
long tj_add(PyObject *self, const uint64_t *words, long count, Candidate *made, const Candidate *instead) {
  PyObject *capsule = fields_of(self)->table;
  if (!capsule) return -1;
  Table *t = PyCapsule_GetPointer(capsule, 0);
  uint64_t hash = hash_of(words, count);
  Bucket *b = find_bucket(t, words, count, hash);
  if (!b) {
    if (t->used >= t->size) grow_table(t);
    if (!(b = calloc(1, sizeof *b + 8 * count))) return -1;
    b->hash = hash, b->count = count, memcpy(b->words, words, 8 * count);
    b->next = t->buckets[hash & (t->size - 1)], t->buckets[hash & (t->size - 1)] = b, t->used++;
  }
  int64_t at = 0;
  while (at < b->candidates && b->candidate[at] != instead) at++;
  if (at == b->candidates && at < MOST_CANDIDATES) b->candidates++;
  else if (at == b->candidates) at--;
  Candidate *old = b->candidate[at];
  for (; at; at--) b->candidate[at] = b->candidate[at - 1];
  b->candidate[0] = made;
  return (long)old;
}

/* Words of what a candidate assumes of its inputs now, into `room` words; how many, or -1 when its checks do not hold. */
long tj_assumed(const Candidate *c, PyObject *const *arguments, long count, uint64_t *words, long room) {
  PyObject *slots[c->slot_count + 1], *found[c->source_count + 1];
  int64_t held = 0, n = -1;
  Key call, key;
  key_open(&call), key_open(&key);
  int told = 1;
  for (long i = 0; told && i < count; i++) told = leaf_words(&call, arguments[i], 0);
  if (told && state_holds(c, &call, slots) && find_inputs(c, &call, found, &held, slots, &key) && key.count <= room)
    n = key.count, memcpy(words, key.words, 8 * n);
  PyErr_Clear();
  key_close(&call), key_close(&key);
  while (held--) Py_DecRef(found[held]);
  return n;
}

/* The key of a call as the callable sees it; None when C cannot tell. */
static PyObject *key_of(PyObject *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
  Key key;
  key_open(&key);
  PyObject *made = &_Py_NoneStruct;
  if (key_words(&key, arguments, count, names)) made = PyBytes_FromStringAndSize((const char *)key.words, 8 * key.count);
  else PyErr_Clear(), Py_IncRef(made);
  key_close(&key);
  return made;
}
typedef struct { const char *name; void *function; int flags; const char *doc; } PyMethodDef;
PyMethodDef tj_key = {"key_of", key_of, 0x82, 0};
