package twin

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// Text returns all that a value holds, also behind pointers and in fields that are not exported. Texts of two values are equal
// if their contents are. The error names the first part of the value that cannot be read: a function, the elements of a channel, an unsafe.Pointer,
// a timer, an open file or connection.
func Text(v any) (string, error) {
	w := writer{path: "it"}
	w.write(addressable(reflect.ValueOf(v)), make(map[visit]bool))
	return w.String(), w.unread
}

type writer struct {
	strings.Builder
	path   string // of the value that is written
	unread error  // about the first value that cannot be read
}

// refuse notes that the value that is written cannot be read. It writes the type instead.
func (w *writer) refuse(v reflect.Value, why string) {
	if w.unread == nil {
		w.unread = fmt.Errorf("%s is a %s, %s", w.path, v.Type(), why)
	}
	w.WriteString(v.Type().String())
}

// writePart writes a part of the value that is written: a field, an element, or the content of a pointer.
func (w *writer) writePart(name string, v reflect.Value, open map[visit]bool) {
	path := w.path
	w.path += name
	w.write(addressable(v), open)
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

// A visit is of what stands behind a pointer, a map or a slice; a value that holds itself is not written again.
type visit struct {
	at  uintptr
	len int // of a slice
	of  reflect.Type
}

// within calls write unless v, which refers to what it holds, is being written already. A nil map or slice holds as much as an empty one.
func (w *writer) within(v reflect.Value, open map[visit]bool, write func()) {
	at := visit{at: v.Pointer(), of: v.Type()}
	if v.Kind() == reflect.Slice {
		at.len = v.Len()
	}
	switch {
	case v.IsNil() && v.Kind() == reflect.Pointer:
		w.WriteString("nil")
	case v.IsNil():
		write()
	case open[at]:
		w.WriteString("itself")
	default:
		open[at] = true
		write()
		delete(open, at)
	}
}

func (w *writer) write(v reflect.Value, open map[visit]bool) {
	if v.IsValid() && w.writeKnown(v, open) {
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
		w.writePart("", v.Elem(), open)
		w.WriteString(")")
	case reflect.Pointer:
		w.within(v, open, func() {
			w.WriteString("&")
			w.writePart("", v.Elem(), open)
		})
	case reflect.Struct:
		w.writeStruct(v, open)
	case reflect.Map:
		w.within(v, open, func() { w.writeMap(v, open) })
	case reflect.Slice:
		w.within(v, open, func() { w.writeList(v, open) })
	case reflect.Array:
		w.writeList(v, open)
	case reflect.String:
		fmt.Fprintf(w, "%q", v.String())
	default:
		w.writePlain(v)
	}
}

// writeKnown writes values whose fields do not tell their content, and reports whether v is one.
func (w *writer) writeKnown(v reflect.Value, open map[visit]bool) bool {
	switch t := v.Type(); {
	case t == reflect.TypeFor[time.Time](): // its fields say how it was made
		w.WriteString(v.Interface().(time.Time).Round(0).Format(time.RFC3339Nano))
	case t == reflect.TypeFor[sync.Map]():
		all := make(map[any]any)
		v.Addr().Interface().(*sync.Map).Range(func(key, value any) bool {
			all[key] = value
			return true
		})
		w.writePart("", reflect.ValueOf(all), open)
	case t.PkgPath() == "sync/atomic" && v.Addr().MethodByName("Load").IsValid():
		w.writePart("", v.Addr().MethodByName("Load").Call(nil)[0], open)
	case t.PkgPath() == "weak" && v.MethodByName("Value").IsValid():
		w.writePart("", v.MethodByName("Value").Call(nil)[0], open)
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

func (w *writer) writeList(v reflect.Value, open map[visit]bool) {
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
		w.writePart(fmt.Sprintf("[%d]", i), v.Index(i), open)
	}
	w.WriteString("]")
}

func (w *writer) writeStruct(v reflect.Value, open map[visit]bool) {
	w.WriteString("{")
	for i := range v.NumField() {
		if i > 0 {
			w.WriteString(" ")
		}
		w.WriteString(v.Type().Field(i).Name + ":")
		w.writePart("."+v.Type().Field(i).Name, v.Field(i), open)
	}
	w.WriteString("}")
}

// writeMap writes the entries in the order of their texts.
func (w *writer) writeMap(v reflect.Value, open map[visit]bool) {
	var all []string
	for key, value := range v.Seq2() {
		entry := writer{path: w.path, unread: w.unread}
		entry.writePart("[key]", key, open)
		entry.WriteString(":")
		entry.writePart("[]", value, open)
		w.unread = entry.unread
		all = append(all, entry.String())
	}
	slices.Sort(all)
	fmt.Fprintf(w, "map[%s]", strings.Join(all, " "))
}
