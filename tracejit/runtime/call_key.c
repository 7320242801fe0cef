/* The key of a call in C: words that are equal for two calls iff the keys that capture/inputs.py makes are equal.
   No headers of Python or torch: functions come by name from the process, places in objects by calibration (call_layout.py). */
typedef signed char int8_t;
typedef int int32_t;
typedef long int64_t, Py_ssize_t;
typedef unsigned long uint64_t, size_t;
typedef struct PyObject { Py_ssize_t references; struct PyObject *type; } PyObject;

extern PyObject _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct;
extern void Py_IncRef(PyObject *), Py_DecRef(PyObject *);
extern PyObject *PyObject_GetAttr(PyObject *, PyObject *), *PyErr_Occurred(void);
extern void PyErr_Clear(void);
extern long long PyLong_AsLongLong(PyObject *);
extern double PyFloat_AsDouble(PyObject *);
extern const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *);
extern Py_ssize_t PyTuple_Size(PyObject *), PyList_Size(PyObject *), PyDict_Size(PyObject *);
extern PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t), *PyList_GetItem(PyObject *, Py_ssize_t);
extern int PyDict_Next(PyObject *, Py_ssize_t *, PyObject **, PyObject **);
extern void *malloc(size_t), *realloc(void *, size_t), *calloc(size_t, size_t), *memcpy(void *, const void *, size_t);
extern void *memset(void *, int, size_t);
extern void free(void *);
extern int memcmp(const void *, const void *, size_t);

/* What call_layout.py found. The order is that of its `Layout`. */
struct {
  PyObject *tensor, *parameter, *integer, *floating, *boolean, *string, *tuple, *list, *dict, *dtype, *device;
  PyObject *name_type, *name_index, *name_grad, *name_factory, *trimmed, *name_missed;
  int8_t (*grad_mode)(void), (*inference_mode)(void), (*requires_grad)(const void *), (*is_leaf)(const void *);
  void *(*context)(void);
  int8_t (*deterministic)(const void *), (*default_dtype)(void), (*autocast_dtype)(int8_t);
  int64_t (*function_modes)(void);
  uint64_t *(*saved_hooks)(void);
  int64_t in_object, keyset, storage, sizes, offset, dtype_at, meta, bytes, data, dict_version, hooks_begin, hooks_end;
  uint64_t plain, inference, views, no_autocast;
} tj_layout;
#define L tj_layout
extern __thread struct { uint64_t included, excluded; } dispatch_keys __asm__("_ZN3c104impl26raw_local_dispatch_key_setE");
int tj_capturing = 0;              /* captures that run now: calls inside of them are theirs */

enum { TENSOR = 1, AGAIN, INT, FLOAT, TRUE, FALSE, NONE, STRING, DTYPE, DEVICE, TUPLE, LIST, DICT, KEYWORDS, MODES, OVERLAP };
enum { OWN_WORDS = 384, OWN_TENSORS = 32, OWN_PLACES = 64, DEEPEST = 20, LONGEST_STRING = 256, ABSENT = -1 };

typedef struct { uint64_t address, number; } Place;
typedef struct { uint64_t from, bytes; } Span;
typedef struct {                   /* a key under construction, the distinct tensors and the storages that it met */
  uint64_t *words;
  PyObject **tensors;
  Span *spans;
  Place *places;                   /* tensors and storages by address; never more than half full */
  int64_t count, room, found, tensor_room, storages, span_room, place_count;
  uint64_t own_words[OWN_WORDS];
  PyObject *own_tensors[OWN_TENSORS];
  Span own_spans[OWN_TENSORS];
  Place own_places[OWN_PLACES];
} Key;

static void key_open(Key *k) {
  k->words = k->own_words, k->tensors = k->own_tensors, k->spans = k->own_spans, k->places = k->own_places;
  k->count = k->found = k->storages = 0;
  k->room = OWN_WORDS, k->tensor_room = k->span_room = OWN_TENSORS, k->place_count = OWN_PLACES;
  memset(k->own_places, 0, sizeof k->own_places);
}

static void key_close(Key *k) {
  if (k->words != k->own_words) free(k->words);
  if (k->tensors != k->own_tensors) free(k->tensors);
  if (k->spans != k->own_spans) free(k->spans);
  if (k->places != k->own_places) free(k->places);
}

/* Room for `more` items of `size` bytes beyond the `used` ones; 0 without memory. */
static inline int want(void *array, const void *own, int64_t used, int64_t *room, int64_t more, int64_t size) {
  void **at = array;
  if (used + more <= *room) return 1;
  int64_t wanted = 4 * *room + more;
  void *made = *at == own ? malloc(wanted * size) : realloc(*at, wanted * size);
  if (!made) return 0;
  if (*at == own) memcpy(made, own, used * size);
  *at = made, *room = wanted;
  return 1;
}
static inline int want_words(Key *k, int64_t n) { return want(&k->words, k->own_words, k->count, &k->room, n, 8); }

static inline Place *place_of(Place *places, int64_t count, uint64_t address) {
  for (uint64_t at = (address >> 4) * 0x9E3779B97F4A7C15ul >> 32;; at++) {
    Place *p = places + (at & (count - 1));
    if (!p->address || p->address == address) return p;
  }
}

static inline int want_places(Key *k) {
  if (2 * (k->found + k->storages + 2) <= k->place_count) return 1;
  int64_t count = 4 * k->place_count;
  Place *places = calloc(count, sizeof *places);
  if (!places) return 0;
  for (int64_t i = 0; i < k->place_count; i++)
    if (k->places[i].address) *place_of(places, count, k->places[i].address) = k->places[i];
  if (k->places != k->own_places) free(k->places);
  k->places = places, k->place_count = count;
  return 1;
}

static inline int want_tensor(Key *k, uint64_t words) {
  return want_words(k, words) && want_places(k) && want(&k->tensors, k->own_tensors, k->found, &k->tensor_room, 1, sizeof *k->tensors)
    && want(&k->spans, k->own_spans, k->storages, &k->span_room, 1, sizeof *k->spans);
}

/* ---- leaves: 1 when the words are written, 0 when C cannot tell (a Python error may be set) */
static inline uint64_t field(const void *object, int64_t offset) { return *(const uint64_t *)((const char *)object + offset); }

static int tensor_words(Key *k, PyObject *t) {
  const char *impl = (const char *)field(t, L.in_object), *sizes = impl + L.sizes;
  uint64_t keyset = field(impl, L.keyset), kind = keyset & ~L.views, dims = field(sizes, 0);
  if ((kind != L.plain && kind != L.inference) || dims > 1000 || !want_tensor(k, 4 + 2 * dims)) return 0;
  Place *known = place_of(k->places, k->place_count, (uint64_t)t);
  if (known->address) {
    k->words[k->count++] = AGAIN | known->number << 8;
    return 1;
  }
  const char *storage = (const char *)field(impl, L.storage);
  const uint64_t *size = (const uint64_t *)(sizes + 8), *stride = size + 5;
  if (dims > 5) size = *(const uint64_t *const *)size, stride = size + dims;
  if (!storage) return 0;
  known->address = (uint64_t)t, known->number = k->found;
  k->tensors[k->found++] = t;
  Place *place = place_of(k->places, k->place_count, (uint64_t)storage);
  uint64_t bytes = field(storage, L.bytes);
  if (!place->address) {
    place->address = (uint64_t)storage, place->number = k->storages;
    k->spans[k->storages++] = (Span){field(storage, L.data), bytes};
  }
  uint64_t grad = field(impl, L.meta) && L.requires_grad(impl) ? L.is_leaf((const char *)t + L.in_object) ? 3 : 1 : 0;
  uint64_t *w = k->words + k->count, dtype = *(const unsigned short *)(impl + L.dtype_at);
  w[0] = TENSOR | (t->type == L.parameter) << 4 | grad << 5 | dims << 8 | dtype << 24 | place->number << 40;
  w[1] = keyset, w[2] = field(impl, L.offset), w[3] = bytes;
  for (uint64_t i = 0; i < dims; i++) w[4 + i] = size[i], w[4 + dims + i] = stride[i];
  k->count += 4 + 2 * dims;
  return 1;
}

static int string_words(Key *k, PyObject *s) {
  Py_ssize_t n;
  const char *text = PyUnicode_AsUTF8AndSize(s, &n);
  if (!text || n > LONGEST_STRING || !want_words(k, n / 8 + 2)) return 0;
  k->words[k->count++] = STRING | (uint64_t)n << 8;
  k->words[k->count + n / 8] = 0;
  memcpy(k->words + k->count, text, n);
  k->count += (n + 7) / 8;
  return 1;
}

static int leaf_words(Key *, PyObject *, int);
static int device_words(Key *k, PyObject *device) {
  PyObject *type = PyObject_GetAttr(device, L.name_type), *index = type ? PyObject_GetAttr(device, L.name_index) : 0;
  k->words[k->count++] = DEVICE;
  int told = index && string_words(k, type) && leaf_words(k, index, DEEPEST);
  if (type) Py_DecRef(type);
  if (index) Py_DecRef(index);
  return told;
}

static int float_words(Key *k, PyObject *o) {
  double value = PyFloat_AsDouble(o);
  k->words[k->count++] = FLOAT;
  if (value != value) k->words[k->count] = ~0ul;       /* their bits are not told apart by repr either */
  else memcpy(k->words + k->count, &value, 8);
  k->count++;
  return 1;
}

static int dict_words(Key *k, PyObject *o, int depth) {
  Py_ssize_t at = 0;
  PyObject *name, *value;
  k->words[k->count++] = DICT | (uint64_t)PyDict_Size(o) << 8;
  while (PyDict_Next(o, &at, &name, &value))
    if (name->type != L.string || !string_words(k, name) || !leaf_words(k, value, depth + 1)) return 0;
  return 1;
}

static int leaf_words(Key *k, PyObject *o, int depth) {
  PyObject *type = o->type;
  if (type == L.tensor || type == L.parameter) return tensor_words(k, o);
  if (depth > DEEPEST || !want_words(k, 2)) return 0;
  if (type == L.integer) {
    long long value = PyLong_AsLongLong(o);
    if (value == -1 && PyErr_Occurred()) return 0;
    k->words[k->count] = INT, k->words[k->count + 1] = value, k->count += 2;
    return 1;
  }
  if (type == L.floating) return float_words(k, o);
  if (type == L.string) return string_words(k, o);
  if (type == L.dict) return dict_words(k, o, depth);
  if (type == L.device) return device_words(k, o);
  if (type == L.dtype) return k->words[k->count] = DTYPE, k->words[k->count + 1] = (uint64_t)o, k->count += 2, 1;
  if (type == L.tuple || type == L.list) {
    int is_list = type == L.list;
    Py_ssize_t n = is_list ? PyList_Size(o) : PyTuple_Size(o);
    k->words[k->count++] = (is_list ? LIST : TUPLE) | (uint64_t)n << 8;
    for (Py_ssize_t i = 0; i < n; i++)
      if (!leaf_words(k, is_list ? PyList_GetItem(o, i) : PyTuple_GetItem(o, i), depth + 1)) return 0;
    return 1;
  }
  uint64_t tag = o == &_Py_NoneStruct ? NONE : o == &_Py_TrueStruct ? TRUE : o == &_Py_FalseStruct ? FALSE : 0;
  if (tag) k->words[k->count++] = tag;
  return tag != 0;
}

/* ---- do two storages lie over the same bytes? */
static void sort_spans(Span *s, Span *other, int64_t n) {
  for (int64_t width = 1; width < n; width *= 2) {
    for (int64_t from = 0; from < n; from += 2 * width) {
      int64_t i = from, middle = from + width < n ? from + width : n, j = middle, to = middle + width < n ? middle + width : n;
      for (int64_t at = from; at < to; at++) other[at] = i < middle && (j >= to || s[i].from <= s[j].from) ? s[i++] : s[j++];
    }
    memcpy(s, other, n * sizeof *s);
  }
}

/* Spans that were seen to lie apart: most calls come with the storages of an earlier one. */
enum { MEMOS = 16 };
static struct { Span *spans; int64_t count; } apart[MEMOS];
static uint64_t memo_of(const Key *k) { return (k->storages ^ k->spans[0].from >> 6 ^ k->spans[k->storages - 1].from >> 10) % MEMOS; }
static void remember(const Key *k) {
  uint64_t at = memo_of(k);
  Span *spans = apart[at].count == k->storages ? apart[at].spans : malloc(k->storages * sizeof *spans);
  if (!spans) return;
  if (spans != apart[at].spans) free(apart[at].spans);
  memcpy(spans, k->spans, k->storages * sizeof *spans);
  apart[at].spans = spans, apart[at].count = k->storages;
}

static int overlap(Span *s, int64_t n, Span *other) {
  int found = 0;
  sort_spans(s, other, n);
  for (int64_t i = 1; i < n; i++) found |= s[i - 1].from + s[i - 1].bytes > s[i].from;
  return found;
}

static int overlap_word(Key *k) {
  int64_t n = 0, found;
  if (k->storages < 2) return 1;
  if (k->storages == 2) found = k->spans[0].from < k->spans[1].from + k->spans[1].bytes && k->spans[1].from < k->spans[0].from + k->spans[0].bytes;
  else {
    uint64_t memo = memo_of(k);
    if (apart[memo].count == k->storages && !memcmp(apart[memo].spans, k->spans, k->storages * sizeof *k->spans)) return 1;
    Span *work = malloc(2 * k->storages * sizeof *work);
    if (!work) return 0;
    for (int64_t i = 0; i < k->storages; i++)
      if (k->spans[i].bytes) work[n++] = k->spans[i];
    found = overlap(work, n, work + k->storages);
    free(work);
    if (!found) remember(k);
  }
  if (!found) return 1;
  if (!want_words(k, 1)) return 0;
  k->words[k->count++] = OVERLAP;
  return 1;
}

/* ---- the whole key: modes, structure and leaves */
static int mode_words(Key *k) {
  if (tj_capturing || L.function_modes()) return 0;
  const uint64_t *hooks = L.saved_hooks();
  if (hooks[L.hooks_begin] != hooks[L.hooks_end]) return 0;
  uint64_t modes = L.grad_mode() | L.inference_mode() << 1 | L.deterministic(L.context()) << 2 | (uint64_t)L.default_dtype() << 8;
  if (dispatch_keys.excluded != L.no_autocast)
    modes |= (uint64_t)(unsigned char)L.autocast_dtype(0) << 16 | (uint64_t)(unsigned char)L.autocast_dtype(1) << 24;
  k->words[0] = MODES | modes << 8, k->words[1] = dispatch_keys.included, k->words[2] = dispatch_keys.excluded;
  k->count = 3;
  return 1;
}

/* arguments: `count` positional ones, then those that the tuple `names` names. */
static int key_words(Key *k, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
  if (!mode_words(k)) return 0;
  Py_ssize_t named = names ? PyTuple_Size(names) : 0;
  k->words[k->count++] = KEYWORDS | (uint64_t)count << 8 | (uint64_t)named << 32;
  for (Py_ssize_t i = 0; i < count; i++)
    if (!leaf_words(k, arguments[i], 0)) return 0;
  for (Py_ssize_t i = 0; i < named; i++)
    if (!string_words(k, PyTuple_GetItem(names, i)) || !leaf_words(k, arguments[count + i], 0)) return 0;
  return overlap_word(k);
}

static inline uint64_t mixed(uint64_t a, uint64_t b) {
  unsigned __int128 m = (unsigned __int128)(a ^ 0x9E3779B97F4A7C15ul) * (b ^ 0xD6E8FEB86659FD93ul);
  return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static uint64_t hash_of(const uint64_t *w, int64_t n) {
  uint64_t a = n, b = 1, c = 2, d = 3;
  for (; n >= 4; n -= 4, w += 4) a = mixed(a, w[0]), b = mixed(b, w[1]), c = mixed(c, w[2]), d = mixed(d, w[3]);
  for (; n; n--, w++) a = mixed(a, *w);
  return mixed(mixed(a, b), mixed(c, d));
}
