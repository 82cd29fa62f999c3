package serviceconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/gohedge/hedge/internal/label"
)

// A value is a JSON value and the path to it.
type value struct {
	path string
	raw  json.RawMessage // nil: there is none
}

// An object is a JSON object and the path to it. As gRPC, it does not distinguish the cases of names.
type object struct {
	path   string
	fields map[string]field // by folded name
}

type field struct {
	name string
	raw  json.RawMessage
}

// folded returns what all names have in common that differ in cases only.
func folded(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return least
	}, name)
}

// given reports whether there is a value, and it is not null.
func (v value) given() bool { return len(v.raw) > 0 && string(v.raw) != "null" }

// wrong returns the error that a value is not what it should be.
func (v value) wrong(want string) error {
	if len(v.raw) == 0 {
		return fmt.Errorf("%s: it is missing, and is to be %s", v.path, want)
	}
	return fmt.Errorf("%s: %s is not %s", v.path, label.Clean(string(v.raw)), want)
}

// object reads an object; nil if there is no value.
func (v value) object() (*object, error) {
	if !v.given() {
		return nil, nil
	}
	if v.raw[0] != '{' {
		return nil, v.wrong("an object")
	}
	o := &object{path: v.path, fields: make(map[string]field)}
	d := json.NewDecoder(bytes.NewReader(v.raw))
	_, err := d.Token()
	for err == nil && d.More() {
		var name json.Token
		if name, err = d.Token(); err != nil {
			break
		}
		f := field{name: name.(string)}
		if err = d.Decode(&f.raw); err != nil {
			break
		}
		key := folded(f.name)
		if _, twice := o.fields[key]; twice {
			return nil, fmt.Errorf("%s is given twice", o.at(label.Clean(f.name)))
		}
		o.fields[key] = f
	}
	return o, err
}

func (o *object) at(name string) string { return o.path + "." + name }

// names returns the names of all fields.
func (o *object) names() (all []string) {
	for _, f := range o.fields {
		all = append(all, f.name)
	}
	slices.Sort(all)
	return all
}

// field returns the value of a field.
func (o *object) field(name string) value {
	return value{o.at(name), o.fields[folded(name)].raw}
}

// array returns the elements of a field that is an array, if it is given.
func (o *object) array(name string) (all []value, err error) {
	v := o.field(name)
	if !v.given() {
		return nil, nil
	}
	var raws []json.RawMessage
	if json.Unmarshal(v.raw, &raws) != nil {
		return nil, v.wrong("an array")
	}
	for i, raw := range raws {
		all = append(all, value{fmt.Sprintf("%s[%d]", v.path, i), raw})
	}
	return all, nil
}

// number returns a value that is a number.
func (v value) number() (f float64, ok bool) {
	ok = v.given() && json.Unmarshal(v.raw, &f) == nil
	return f, ok
}
