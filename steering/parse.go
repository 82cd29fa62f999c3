package steering

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/gohedge/hedge/internal/sanitize"
)

// maxFileBytes is the maximum size of a file in bytes.
const maxFileBytes = 1 << 20

// ReadFile reads the settings in a file. If the file is invalid or larger than 1 MiB, the error has the path, the line, the
// name of the setting and its value.
func ReadFile(path string) (File, error) {
	text, err := readText(path)
	if err != nil {
		return File{}, fmt.Errorf("steering: %w", err)
	}
	f, err := parseSettings(text)
	if err != nil {
		return File{}, fmt.Errorf("steering: %s: %w", path, err)
	}
	return f, nil
}

// readText returns the content of the file at path. It returns an error if the file is larger than maxFileBytes. It
// also returns an error if the file is not a regular file, because opening a FIFO could block forever.
func readText(path string) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err == nil && len(text) > maxFileBytes {
		err = fmt.Errorf("%s is larger than 1 MiB", path)
	}
	return text, err
}

// MarshalJSON encodes f as a JSON object that [File.UnmarshalJSON] can decode. A [time.Duration] becomes a string such as "10ms".
// If f is invalid, it returns an error.
func (f File) MarshalJSON() ([]byte, error) {
	o, _, err := f.convertToOverride()
	if err != nil {
		return nil, fmt.Errorf("steering: %w", err)
	}
	type fields File // has no MarshalJSON
	all := fields(f)
	all.Config = make(map[string]any)
	for name, value := range o.Config {
		all.Config[name] = value
	}
	return json.Marshal(all)
}

// UnmarshalJSON decodes settings from a JSON object, and replaces f. If a name is unknown or a value is invalid, the error has
// the line, the name and the value, and f does not change.
func (f *File) UnmarshalJSON(text []byte) error {
	read, err := parseSettings(text)
	if err != nil {
		return fmt.Errorf("steering: %w", err)
	}
	*f = read
	return nil
}

// parseSettings decodes the JSON text of a steering file, and validates the settings in it. An error has the line in
// text, the name of the setting and its value.
func parseSettings(text []byte) (f File, err error) {
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil {
		offset := len(text)
		if wrong := (*json.SyntaxError)(nil); errors.As(err, &wrong) {
			offset = int(wrong.Offset)
		}
		return File{}, errorAt(text, offset, err)
	}
	d := jsonDocument{text: text, offsets: make(map[string]int)}
	if err := d.decodeFile(&f); err != nil {
		return File{}, err
	}
	if _, path, err := f.convertToOverride(); err != nil {
		return File{}, errorAt(text, d.offsets[strings.Join(path, "\n")], err)
	}
	return f, nil
}

// errorAt adds a line number to err: the line of text that contains the byte at the given offset.
func errorAt(text []byte, offset int, err error) error {
	return fmt.Errorf("line %d: %w", 1+bytes.Count(text[:min(offset, len(text))], []byte("\n")), err)
}

// A jsonDocument is a valid JSON text with the position of each value in it, so that an error can name the line of a
// value.
type jsonDocument struct {
	text []byte
	// offsets maps the path of a value, such as "config\nburst", to its position in text. A path is the names of the value and
	// of the objects that contain it, separated by line breaks.
	offsets map[string]int
}

// A member is a name of a JSON object with its value, and the position of the value in the text.
type member struct {
	name   string
	value  json.RawMessage
	offset int // position of value in the document
}

// decodeFile decodes the whole JSON text into f. It returns an error for an unknown name, for a name that is given
// twice, and for a value of the wrong JSON type.
func (d *jsonDocument) decodeFile(f *File) error {
	value := bytes.TrimSpace(d.text)
	all, err := d.decodeMembers("", value, bytes.Index(d.text, value))
	if err != nil {
		return err
	}
	for _, m := range all {
		switch m.name {
		case "mode":
			err = d.decodeValue(m, "a string", &f.Mode)
		case "disabled":
			err = d.decodeValue(m, "true or false", &f.Disabled)
		case "config":
			f.Config, err = decodeMap[any](d, m, "a value")
		case "routes":
			f.Routes, err = decodeMap[bool](d, m, "true or false")
		case "methods":
			f.Methods, err = decodeMap[bool](d, m, "true or false")
		default:
			err = errorAt(d.text, m.offset, fmt.Errorf("%q is no setting; there are mode, disabled, config, routes, methods", sanitize.CleanText(m.name)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// decodeMembers returns the members of a JSON object that is a part of the document, and stores their positions. path
// is the path of the object in the document, and offset its position. It returns an error if object is another JSON
// value, or if a name is given twice.
func (d *jsonDocument) decodeMembers(path string, object json.RawMessage, offset int) (all []member, err error) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return nil, errorAt(d.text, offset, fmt.Errorf("%s is not an object of settings", sanitize.CleanText(string(object))))
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, err // cannot happen: the text is valid
		}
		m := member{name: name.(string)}
		if err := decoder.Decode(&m.value); err != nil {
			return nil, err // cannot happen: the text is valid
		}
		m.offset = offset + int(decoder.InputOffset()) - len(m.value)
		key := path + m.name
		if _, twice := d.offsets[key]; twice {
			return nil, errorAt(d.text, m.offset, fmt.Errorf("%q is given twice", sanitize.CleanText(m.name)))
		}
		d.offsets[key] = m.offset
		all = append(all, m)
	}
	return all, nil
}

// decodeValue decodes the JSON value of m into the variable to which v points. If the value has another JSON type or is
// null, it returns an error. want describes the valid values, such as "true or false", for the error.
//
// If v points to an any, an integer beyond 2^53 becomes an int64, because a float64 would change it.
func (d *jsonDocument) decodeValue(m member, want string, v any) error {
	if err := json.Unmarshal(m.value, v); err != nil || string(m.value) == "null" {
		return errorAt(d.text, m.offset, fmt.Errorf("%s: %s is not %s", sanitize.CleanText(m.name), sanitize.CleanText(string(m.value)), want))
	}
	if v, ok := v.(*any); ok {
		if i, err := strconv.ParseInt(string(m.value), 10, 64); err == nil && (i > 1<<53 || i < -1<<53) {
			*v = i
		}
	}
	return nil
}

// decodeMap decodes the value of m, a JSON object whose values all have the Go type V, into a map by name. want
// describes these values, such as "true or false", for errors. d is the document that contains m.
func decodeMap[V any](d *jsonDocument, m member, want string) (map[string]V, error) {
	all, err := d.decodeMembers(m.name+"\n", m.value, m.offset)
	if err != nil {
		return nil, err
	}
	values := make(map[string]V)
	for _, part := range all {
		var v V
		if err := d.decodeValue(part, want, &v); err != nil {
			return nil, err
		}
		values[part.name] = v
	}
	return values, nil
}
