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

// FormatValue returns the complete content of a value as text, including unexported fields and values behind pointers.
// Two texts are equal if the contents are equal and the same parts share memory. Shared memory is written once.
//
// The error names the first part of the value that cannot be read: a function, the elements of a channel, an
// unsafe.Pointer, a timer, an open file or connection.
func FormatValue(v any) (string, error) {
	w := writer{path: "it", seen: make(map[reference]occurrence)}
	w.write(makeAddressable(reflect.ValueOf(v)))
	return w.String(), w.unread
}

// A writer formats one value.
type writer struct {
	strings.Builder
	path   string // path of the part being written, such as "it.Field[0]"
	unread error  // error for the first part that cannot be read
	// references written so far
	seen map[reference]occurrence
}

// recordUnreadable records that the current part cannot be read, for the given reason. It writes the type of v in its place.
func (w *writer) recordUnreadable(v reflect.Value, why string) {
	if w.unread == nil {
		w.unread = fmt.Errorf("%s is a %s, %s", w.path, v.Type(), why)
	}
	w.WriteString(v.Type().String())
}

// writePart writes a part of the current value: a field, an element, or the value behind a pointer.
func (w *writer) writePart(name string, v reflect.Value) {
	path := w.path
	w.path += name
	w.write(makeAddressable(v))
	w.path = path
}

// makeAddressable returns v, or a copy of v if it has no address, such that unexported fields can be read.
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

// A reference identifies the memory that a pointer, a map or a slice refers to.
type reference struct {
	at  uintptr
	len int // length of a slice
	of  reflect.Type
}

// A occurrence is the first occurrence of a reference.
type occurrence struct {
	number int
	value  reflect.Value // keeps the memory from being reused while the writer runs
}

// writeOnce calls write for the first occurrence of the pointer, map or slice v. For a later one, it writes the
// number of the first. Empty maps and slices, nil pointers, and pointers to values of size 0 are always written.
func (w *writer) writeOnce(v reflect.Value, write func()) {
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

// write writes v according to its kind.
func (w *writer) write(v reflect.Value) {
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

// writeKnownType writes a value of a known type whose fields do not represent its content, such as time.Time. It reports
// false for any other type.
func (w *writer) writeKnownType(v reflect.Value) bool {
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

// writeScalar writes a value without parts. It ignores a String method, which may omit something.
func (w *writer) writeScalar(v reflect.Value) {
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

// writeList writes the elements of a slice or an array.
func (w *writer) writeList(v reflect.Value) {
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

// writeStruct writes the fields of a struct.
func (w *writer) writeStruct(v reflect.Value) {
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

// writeMap writes the entries of a map, sorted by the texts of their keys and then of their values.
func (w *writer) writeMap(v reflect.Value) {
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

// formatIndependently returns the text of a value, independent of references that were written before.
func formatIndependently(v reflect.Value) string {
	w := writer{seen: make(map[reference]occurrence)}
	w.write(makeAddressable(v))
	return w.String()
}
