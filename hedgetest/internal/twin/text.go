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

// FormatValue returns all that a value holds, also behind pointers and in fields that are not exported. Texts of two values are equal
// if their contents are, and if the same of their parts share memory. It writes shared memory once. The error names the first part of the value that cannot be read: a function, the elements of a channel, an unsafe.Pointer,
// a timer, an open file or connection.
func FormatValue(v any) (string, error) {
	w := writer{path: "it", met: make(map[reference]meeting)}
	w.write(addressable(reflect.ValueOf(v)))
	return w.String(), w.unread
}

type writer struct {
	strings.Builder
	path   string // of the value that is written
	unread error  // about the first value that cannot be read
	met    map[reference]meeting
}

// refuse notes that the value that is written cannot be read. It writes the type instead.
func (w *writer) refuse(v reflect.Value, why string) {
	if w.unread == nil {
		w.unread = fmt.Errorf("%s is a %s, %s", w.path, v.Type(), why)
	}
	w.WriteString(v.Type().String())
}

// writePart writes a part of the value that is written: a field, an element, or the content of a pointer.
func (w *writer) writePart(name string, v reflect.Value) {
	path := w.path
	w.path += name
	w.write(addressable(v))
	w.path = path
}

// addressable returns v, or a copy of it if it has no address, without the ban on fields that are not exported.
func addressable(v reflect.Value) reflect.Value {
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

// A reference is what a pointer, a map or a slice refers to.
type reference struct {
	at  uintptr
	len int // of a slice
	of  reflect.Type
}

// A meeting is the first time that the writer met a reference.
type meeting struct {
	number int
	value  reflect.Value // keeps the memory from being used again while the writer works
}

// writeReferred calls write if v, a pointer, a map or a slice, is met for the first time. Otherwise it writes the number of that meeting. An
// empty map or slice, nil or not, is written each time, and so is a pointer to nothing.
func (w *writer) writeReferred(v reflect.Value, write func()) {
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
	if first, ok := w.met[to]; ok {
		fmt.Fprintf(w, "#%d", first.number)
		return
	}
	w.met[to] = meeting{len(w.met), v}
	write()
}

func (w *writer) write(v reflect.Value) {
	if v.IsValid() && w.writeKnown(v) {
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
		w.writeReferred(v, func() {
			w.WriteString("&")
			w.writePart("", v.Elem())
		})
	case reflect.Struct:
		w.writeStruct(v)
	case reflect.Map:
		w.writeReferred(v, func() { w.writeMap(v) })
	case reflect.Slice:
		w.writeReferred(v, func() { w.writeList(v) })
	case reflect.Array:
		w.writeList(v)
	case reflect.String:
		fmt.Fprintf(w, "%q", v.String())
	default:
		w.writePlain(v)
	}
}

// writeKnown writes values whose fields do not tell their content, and reports whether v is one.
func (w *writer) writeKnown(v reflect.Value) bool {
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
		w.refuse(v, "whose content cannot be read")
	case t.Kind() == reflect.Pointer && t.Implements(reflect.TypeFor[reflect.Type]()) && !v.IsNil():
		w.WriteString(v.Interface().(reflect.Type).String())
	default:
		return false
	}
	return true
}

// writePlain writes a value that consists of no others, whatever methods its type has: a String may leave out what changes.
func (w *writer) writePlain(v reflect.Value) {
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
			w.refuse(v, "whose elements cannot be read without taking them")
		}
		fmt.Fprintf(w, "chan %d of %d", v.Len(), v.Cap())
	default:
		w.refuse(v, "which cannot be read")
	}
}

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

// writeMap writes the entries in the order of the texts of their keys, and of their values where those are equal.
func (w *writer) writeMap(v reflect.Value) {
	type entry struct {
		key, value reflect.Value
		text       string // of the key alone
	}
	var all []entry
	for key, value := range v.Seq2() {
		all = append(all, entry{key, value, textAlone(key)})
	}
	slices.SortFunc(all, func(a, b entry) int {
		if c := cmp.Compare(a.text, b.text); c != 0 {
			return c
		}
		return cmp.Compare(textAlone(a.value), textAlone(b.value))
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

// textAlone returns the text of a value, whatever the writer has met before.
func textAlone(v reflect.Value) string {
	w := writer{met: make(map[reference]meeting)}
	w.write(addressable(v))
	return w.String()
}
