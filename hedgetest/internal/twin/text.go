package twin

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// text returns all that a value holds, also behind pointers and in fields that are not exported. Texts of two values are equal
// if what they hold is. Functions and channels, which hold nothing that can be read, are their addresses.
func text(v any) string {
	var w writer
	w.write(reflect.ValueOf(v), make(map[visit]bool))
	return w.String()
}

type writer struct{ strings.Builder }

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
	switch v.Kind() {
	case reflect.Invalid:
		w.WriteString("nil")
	case reflect.Interface:
		w.write(v.Elem(), open)
	case reflect.Pointer:
		w.within(v, open, func() {
			w.WriteString("&")
			w.write(v.Elem(), open)
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

// writePlain writes a value that consists of no others, whatever methods its type has: a String may leave out what changes.
func (w *writer) writePlain(v reflect.Value) {
	switch {
	case v.CanInt():
		fmt.Fprint(w, v.Int())
	case v.CanUint():
		fmt.Fprint(w, v.Uint())
	case v.CanFloat():
		fmt.Fprint(w, v.Float())
	case v.CanComplex():
		fmt.Fprint(w, v.Complex())
	case v.Kind() == reflect.Bool:
		fmt.Fprint(w, v.Bool())
	default:
		fmt.Fprintf(w, "%#x", v.Pointer())
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
		w.write(v.Index(i), open)
	}
	w.WriteString("]")
}

func (w *writer) writeStruct(v reflect.Value, open map[visit]bool) {
	if v.Type() == reflect.TypeFor[time.Time]() && v.CanInterface() { // its fields say how it was made
		w.WriteString(v.Interface().(time.Time).Round(0).Format(time.RFC3339Nano))
		return
	}
	w.WriteString("{")
	for i := range v.NumField() {
		if i > 0 {
			w.WriteString(" ")
		}
		w.WriteString(v.Type().Field(i).Name + ":")
		w.write(v.Field(i), open)
	}
	w.WriteString("}")
}

// writeMap writes the entries in the order of their texts.
func (w *writer) writeMap(v reflect.Value, open map[visit]bool) {
	var all []string
	for key, value := range v.Seq2() {
		var entry writer
		entry.write(key, open)
		entry.WriteString(":")
		entry.write(value, open)
		all = append(all, entry.String())
	}
	slices.Sort(all)
	fmt.Fprintf(w, "map[%s]", strings.Join(all, " "))
}
