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

// A jsonValue is a value in a service config in JSON. It also holds the path of the value, for error messages.
type jsonValue struct {
	path string          // such as "methodConfig[0].hedgingPolicy"
	raw  json.RawMessage // the value in JSON; nil if the field is missing
}

// A jsonObject is a parsed JSON object in a service config, with its path for error messages. The case of field names
// is ignored, as in gRPC.
type jsonObject struct {
	path   string
	fields map[string]jsonField // keyed by the result of foldCase for the field name
}

// A jsonField is a field of a JSON object, with its name as it is spelled in the config.
type jsonField struct {
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

// isSet reports whether the field exists and its value is not null.
func (v jsonValue) isSet() bool { return len(v.raw) > 0 && string(v.raw) != "null" }

// newInvalidError returns an error for an invalid value. The error names the path and the value, and says that the value
// is not want, such as "an array".
func (v jsonValue) newInvalidError(want string) error {
	if len(v.raw) == 0 {
		return fmt.Errorf("%s: missing; it must be %s", v.path, want)
	}
	return fmt.Errorf("%s: %s is not %s", v.path, sanitize.CleanText(string(v.raw)), want)
}

// parseObject parses a JSON object. It returns nil and no error if the value is not set. It returns an error if the
// value is not an object or has a duplicate field.
func (v jsonValue) parseObject() (*jsonObject, error) {
	if !v.isSet() {
		return nil, nil
	}
	if v.raw[0] != '{' {
		return nil, v.newInvalidError("an object")
	}
	o := &jsonObject{path: v.path, fields: make(map[string]jsonField)}
	d := json.NewDecoder(bytes.NewReader(v.raw))
	_, err := d.Token()
	for err == nil && d.More() {
		var name json.Token
		if name, err = d.Token(); err != nil {
			break
		}
		f := jsonField{name: name.(string)}
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

// fieldPath returns the path in the config of the field with the given name, for error messages.
func (o *jsonObject) fieldPath(name string) string { return o.path + "." + name }

// fieldNames returns the names of all fields as they are spelled in the config, sorted.
func (o *jsonObject) fieldNames() (all []string) {
	for _, f := range o.fields {
		all = append(all, f.name)
	}
	slices.Sort(all)
	return all
}

// field returns the value of the field with the given name, ignoring the case of letters. If the object has no such
// field, the result is not set.
func (o *jsonObject) field(name string) jsonValue {
	return jsonValue{o.fieldPath(name), o.fields[foldCase(name)].raw}
}

// parseArray returns the elements of the field with the given name, which must be an array. It returns nil and no error
// if the field is not set.
func (o *jsonObject) parseArray(name string) (all []jsonValue, err error) {
	v := o.field(name)
	if !v.isSet() {
		return nil, nil
	}
	var raws []json.RawMessage
	if json.Unmarshal(v.raw, &raws) != nil {
		return nil, v.newInvalidError("an array")
	}
	for i, raw := range raws {
		all = append(all, jsonValue{fmt.Sprintf("%s[%d]", v.path, i), raw})
	}
	return all, nil
}

// parseNumber parses a JSON number. The result ok is false if the value is not set or not a number.
func (v jsonValue) parseNumber() (f float64, ok bool) {
	ok = v.isSet() && json.Unmarshal(v.raw, &f) == nil
	return f, ok
}
