package serviceconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/gohedge/hedge/internal/sanitize"
)

// A value is a JSON value with its path in the service config, for errors.
type value struct {
	path string
	raw  json.RawMessage // nil: the field is missing
}

// An object is a JSON object with its path in the service config. Names of fields match in any case, as in gRPC.
type object struct {
	path   string
	fields map[string]field // keyed by foldCase of the name
}

type field struct {
	name string
	raw  json.RawMessage
}

// foldCase returns a canonical form of name: names that are equal under Unicode case folding have the same form.
func foldCase(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return least
	}, name)
}

// isSet reports whether the field exists and is not null.
func (v value) isSet() bool { return len(v.raw) > 0 && string(v.raw) != "null" }

// invalidError returns an error that describes the value and says that it is not want, such as "an array".
func (v value) invalidError(want string) error {
	if len(v.raw) == 0 {
		return fmt.Errorf("%s: missing; it must be %s", v.path, want)
	}
	return fmt.Errorf("%s: %s is not %s", v.path, sanitize.CleanText(string(v.raw)), want)
}

// parseObject parses a JSON object. It returns nil if the value is not set. It rejects duplicate fields.
func (v value) parseObject() (*object, error) {
	if !v.isSet() {
		return nil, nil
	}
	if v.raw[0] != '{' {
		return nil, v.invalidError("an object")
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
		key := foldCase(f.name)
		if _, twice := o.fields[key]; twice {
			return nil, fmt.Errorf("%s is given twice", o.fieldPath(sanitize.CleanText(f.name)))
		}
		o.fields[key] = f
	}
	return o, err
}

func (o *object) fieldPath(name string) string { return o.path + "." + name }

// fieldNames returns the names of all fields as they are spelled, sorted.
func (o *object) fieldNames() (all []string) {
	for _, f := range o.fields {
		all = append(all, f.name)
	}
	slices.Sort(all)
	return all
}

// field returns the value of a field. The value is not set if the field is missing.
func (o *object) field(name string) value {
	return value{o.fieldPath(name), o.fields[foldCase(name)].raw}
}

// parseArray returns the elements of a field that is an array. It returns nil if the field is not set.
func (o *object) parseArray(name string) (all []value, err error) {
	v := o.field(name)
	if !v.isSet() {
		return nil, nil
	}
	var raws []json.RawMessage
	if json.Unmarshal(v.raw, &raws) != nil {
		return nil, v.invalidError("an array")
	}
	for i, raw := range raws {
		all = append(all, value{fmt.Sprintf("%s[%d]", v.path, i), raw})
	}
	return all, nil
}

func (v value) parseNumber() (f float64, ok bool) {
	ok = v.isSet() && json.Unmarshal(v.raw, &f) == nil
	return f, ok
}
