package race

import (
	"reflect"
	"unsafe"
)

// Won reports whether v is the value that has won. It may be asked in Discard: an attempt that lost may
// have returned the winner's value as well, as calls of a cache do. Nothing has won for a caller that has left by a panic.
func (r *Race[T]) Won(v T) bool {
	r.mu.Lock()
	won, answer := r.winner >= 0 && !r.abandoned, r.value
	r.mu.Unlock()
	return won && Same(reflect.ValueOf(v), reflect.ValueOf(answer))
}

// Same reports whether two values are identical: they are equal, or refer to the same memory. It does not compare the memory.
func Same(v, w reflect.Value) bool {
	if !v.IsValid() || !w.IsValid() || v.Type() != w.Type() {
		return false
	}
	switch v.Kind() {
	case reflect.Interface:
		return v.IsNil() && w.IsNil() || Same(v.Elem(), w.Elem())
	case reflect.Slice:
		return v.Len() == w.Len() && v.UnsafePointer() == w.UnsafePointer()
	case reflect.Map:
		return v.UnsafePointer() == w.UnsafePointer()
	case reflect.Struct:
		for i := range v.NumField() {
			if !Same(v.Field(i), w.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Array:
		for i := range v.Len() {
			if !Same(v.Index(i), w.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Func:
		return closure(v) == closure(w)
	case reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return true // refers to nothing, and a NaN would not equal itself
	}
	return v.Comparable() && v.Equal(w)
}

// closure returns what a function value is: a pointer to its code and what that refers to. Of one that reflect does
// not let be copied it returns the code's, which others may have as well.
func closure(v reflect.Value) unsafe.Pointer {
	if !v.CanInterface() {
		return v.UnsafePointer()
	}
	own := reflect.New(v.Type())
	own.Elem().Set(v)
	return *(*unsafe.Pointer)(own.UnsafePointer())
}

// IsNil reports whether v is a nil of any type: there is nothing to close.
func IsNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return r.IsNil()
	}
	return false
}
