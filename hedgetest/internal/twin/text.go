package twin

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// FormatValue returns the complete content of v as text, including unexported fields and values behind pointers. Two
// texts are equal if the contents are equal and the same parts share memory. Shared memory is written once, so values
// that contain themselves end.
//
// The error names the first part of the value that cannot be read: a function, the elements of a channel, an
// unsafe.Pointer, a timer, an open file or connection.
func FormatValue(v any) (string, error) {
	w := valueWriter{path: "it", seen: make(map[reference]occurrence)}
	w.write(makeAddressable(reflect.ValueOf(v)))
	return w.String(), w.unread
}

// A valueWriter formats one value and all its parts as text, for FormatValue. It is not safe for concurrent use.
type valueWriter struct {
	strings.Builder
	path   string // path of the part being written, such as "it.Field[0]"
	unread error  // error for the first part that cannot be read
	// seen holds the first pointer, map or slice that was written for each reference.
	seen map[reference]occurrence
}

// recordUnreadable records that the part v of the value cannot be read, for the reason why. It writes the type of v in
// place of the content. Only the first unreadable part is reported.
func (w *valueWriter) recordUnreadable(v reflect.Value, why string) {
	if w.unread == nil {
		w.unread = fmt.Errorf("%s is a %s, %s", w.path, v.Type(), why)
	}
	w.WriteString(v.Type().String())
}

// writePart writes the part v of the current value: a field, an element, or the value behind a pointer. The name, such
// as ".Field", extends the path for error texts.
func (w *valueWriter) writePart(name string, v reflect.Value) {
	path := w.path
	w.path += name
	w.write(makeAddressable(v))
	w.path = path
}

// makeAddressable returns v in a form from which unexported fields can be read. A value without an address is copied to
// new memory.
func makeAddressable(v reflect.Value) reflect.Value {
	switch {
	case !v.IsValid():
		return v
	case v.CanAddr():
		return reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
	}
	p := reflect.New(v.Type()).Elem()
	p.Set(v)
	return p
}

// A reference identifies the memory to which a pointer, a map or a slice refers. Equal references share memory.
type reference struct {
	at  uintptr      // address of the memory
	len int          // number of elements of a slice; 0 for pointers and maps
	of  reflect.Type // type of the pointer, map or slice
}

// An occurrence is the first pointer, map or slice that refers to its memory. The text of later values that refer to
// the same memory is the number of the occurrence.
type occurrence struct {
	number int           // position among all occurrences, from 0
	value  reflect.Value // keeps the memory from being reused while the writer runs
}

// writeOnce calls write if v is the first pointer, map or slice that refers to its memory. Otherwise it writes the
// number of the first. Empty maps and slices, nil pointers, and pointers to values of size 0 are always written.
func (w *valueWriter) writeOnce(v reflect.Value, write func()) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			w.WriteString("nil")
			return
		}
		if v.Type().Elem().Size() == 0 { // all of them may have one address
			write()
			return
		}
	default:
		if v.Len() == 0 {
			write()
			return
		}
	}
	to := reference{at: v.Pointer(), of: v.Type()}
	if v.Kind() == reflect.Slice {
		to.len = v.Len()
	}
	if first, ok := w.seen[to]; ok {
		fmt.Fprintf(w, "#%d", first.number)
		return
	}
	w.seen[to] = occurrence{len(w.seen), v}
	write()
}

// write writes the content of v, of any kind, as text. The value v must be invalid or addressable.
func (w *valueWriter) write(v reflect.Value) {
	if v.IsValid() && w.writeKnownType(v) {
		return
	}
	switch v.Kind() {
	case reflect.Invalid:
		w.WriteString("nil")
	case reflect.Interface:
		if v.IsNil() {
			w.WriteString("nil")
			return
		}
		w.WriteString(v.Elem().Type().String() + "(")
		w.writePart("", v.Elem())
		w.WriteString(")")
	case reflect.Pointer:
		w.writeOnce(v, func() {
			w.WriteString("&")
			w.writePart("", v.Elem())
		})
	case reflect.Struct:
		w.writeStruct(v)
	case reflect.Map:
		w.writeOnce(v, func() { w.writeMap(v) })
	case reflect.Slice:
		w.writeOnce(v, func() { w.writeList(v) })
	case reflect.Array:
		w.writeList(v)
	case reflect.String:
		fmt.Fprintf(w, "%q", v.String())
	default:
		w.writeScalar(v)
	}
}

// writeKnownType writes v if its type is known and its fields do not represent its content, such as time.Time. It
// returns false, and writes nothing, for any other type.
func (w *valueWriter) writeKnownType(v reflect.Value) bool {
	switch t := v.Type(); {
	case t == reflect.TypeFor[time.Time](): // its fields say how it was made
		w.WriteString(v.Interface().(time.Time).Round(0).Format(time.RFC3339Nano))
	case t == reflect.TypeFor[sync.Map]():
		all := make(map[any]any)
		v.Addr().Interface().(*sync.Map).Range(func(key, value any) bool {
			all[key] = value
			return true
		})
		w.writePart("", reflect.ValueOf(all))
	case t.PkgPath() == "sync/atomic" && v.Addr().MethodByName("Load").IsValid():
		w.writePart("", v.Addr().MethodByName("Load").Call(nil)[0])
	case t.PkgPath() == "weak" && v.MethodByName("Value").IsValid():
		w.writePart("", v.MethodByName("Value").Call(nil)[0])
	case t == reflect.TypeFor[sync.Mutex](), t == reflect.TypeFor[sync.RWMutex](), t == reflect.TypeFor[sync.WaitGroup](),
		t == reflect.TypeFor[sync.Cond](), t == reflect.TypeFor[sync.Pool](): // they hold no state that lasts
		w.WriteString(t.String())
	case t == reflect.TypeFor[reflect.Value](), t == reflect.TypeFor[time.Timer](), t == reflect.TypeFor[time.Ticker](),
		t.PkgPath() == "internal/poll" && t.Name() == "FD":
		w.recordUnreadable(v, "whose content cannot be read")
	case t.Kind() == reflect.Pointer && t.Implements(reflect.TypeFor[reflect.Type]()) && !v.IsNil():
		w.WriteString(v.Interface().(reflect.Type).String())
	default:
		return false
	}
	return true
}

// writeScalar writes a value without parts, such as a number. It ignores a String method of the type, because the
// method may omit something.
func (w *valueWriter) writeScalar(v reflect.Value) {
	switch {
	case v.CanInt():
		fmt.Fprint(w, v.Int())
	case v.CanUint():
		fmt.Fprint(w, v.Uint())
	case v.CanFloat():
		fmt.Fprint(w, v.Float()+0) // -0 is 0
	case v.CanComplex():
		fmt.Fprint(w, v.Complex())
	case v.Kind() == reflect.Bool:
		fmt.Fprint(w, v.Bool())
	case v.IsNil():
		w.WriteString("nil")
	case v.Kind() == reflect.Chan:
		if v.Len() > 0 && v.Type().Elem().Size() > 0 {
			w.recordUnreadable(v, "whose elements cannot be read without taking them")
		}
		fmt.Fprintf(w, "chan %d of %d", v.Len(), v.Cap())
	default:
		w.recordUnreadable(v, "which cannot be read")
	}
}

// writeList writes the elements of a slice or an array in order. Bytes are written as a quoted string.
func (w *valueWriter) writeList(v reflect.Value) {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		var all []byte
		for i := range v.Len() {
			all = append(all, byte(v.Index(i).Uint()))
		}
		fmt.Fprintf(w, "%q", all)
		return
	}
	w.WriteString("[")
	for i := range v.Len() {
		if i > 0 {
			w.WriteString(" ")
		}
		w.writePart(fmt.Sprintf("[%d]", i), v.Index(i))
	}
	w.WriteString("]")
}

// writeStruct writes the names and values of all fields of a struct.
func (w *valueWriter) writeStruct(v reflect.Value) {
	w.WriteString("{")
	for i := range v.NumField() {
		if i > 0 {
			w.WriteString(" ")
		}
		w.WriteString(v.Type().Field(i).Name + ":")
		w.writePart("."+v.Type().Field(i).Name, v.Field(i))
	}
	w.WriteString("}")
}

// writeMap writes the entries of a map. They are sorted by the texts of their keys and then of their values, so that
// equal maps have equal texts.
func (w *valueWriter) writeMap(v reflect.Value) {
	type entry struct {
		key, value reflect.Value
		text       string // of the key alone
	}
	var all []entry
	for key, value := range v.Seq2() {
		all = append(all, entry{key, value, formatIndependently(key)})
	}
	slices.SortFunc(all, func(a, b entry) int {
		if c := cmp.Compare(a.text, b.text); c != 0 {
			return c
		}
		return cmp.Compare(formatIndependently(a.value), formatIndependently(b.value))
	})
	w.WriteString("map[")
	for i, e := range all {
		if i > 0 {
			w.WriteString(" ")
		}
		w.writePart("[key]", e.key)
		w.WriteString(":")
		w.writePart("[]", e.value)
	}
	w.WriteString("]")
}

// formatIndependently returns the text of v as if no other value was written before. The text has no numbers of earlier
// occurrences, so it can be used for sorting.
func formatIndependently(v reflect.Value) string {
	w := valueWriter{seen: make(map[reference]occurrence)}
	w.write(makeAddressable(v))
	return w.String()
}
