package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// byToken is a RoundTripper for below the hedging. It returns event streams whose first byte comes with their first token, so
// that with hedge.WithFirstByte, or Policy.FirstByte, the first token decides which attempt wins. A stream that ends, or says that it
// failed, before that is an error of its body, and does not win.
type byToken struct{ http.RoundTripper }

func (t byToken) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		resp.Body = &stream{ReadCloser: resp.Body}
	}
	return resp, err
}

// WrappedRoundTripper returns what byToken sends through. The hedging asks for it.
func (t byToken) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// maxHeld is how many bytes a stream may have before its first token; a longer one is read as it comes.
const maxHeld = 64 << 10

// A stream is the body of an event stream. It holds back what comes before the first token.
type stream struct {
	io.ReadCloser
	held  []byte // read, and not given to the reader
	lines int    // bytes of held that are lines without a token
	begun bool   // the first token is there
	err   error  // of the body
}

func (s *stream) Read(p []byte) (int, error) {
	for buf := make([]byte, 4096); !s.begun && s.err == nil; {
		var n int
		n, s.err = s.ReadCloser.Read(buf)
		s.held = append(s.held, buf[:n]...)
		if failed := s.look(); failed != nil {
			s.held, s.err = nil, failed
		} else if !s.begun && s.err == io.EOF {
			s.held, s.err = nil, fmt.Errorf("the answer ended before its first token: %w", io.ErrUnexpectedEOF)
		}
	}
	if n := copy(p, s.held); n > 0 {
		s.held = s.held[n:]
		return n, nil
	}
	if s.err != nil {
		return 0, s.err
	}
	return s.ReadCloser.Read(p)
}

// look looks for the first token in the lines that it has not seen. It returns an error if the provider says that it failed.
func (s *stream) look() error {
	for !s.begun {
		line, _, whole := bytes.Cut(s.held[s.lines:], []byte("\n"))
		if !whole {
			break
		}
		s.lines += len(line) + 1
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue // a comment, a keep-alive, a name, the end of an event
		}
		var e event
		if err := json.Unmarshal(data, &e); err == nil && len(e.Error) > 0 && string(e.Error) != "null" {
			return fmt.Errorf("the provider failed before the first token: %s", e.Error)
		}
		s.begun = e.hasToken() || string(bytes.TrimSpace(data)) == "[DONE]"
	}
	s.begun = s.begun || len(s.held) > maxHeld
	return nil
}

// An event is what a chunk of an answer says.
type event struct {
	Choices []struct {
		Delta struct {
			Content   string            `json:"content"`
			Refusal   string            `json:"refusal"`
			ToolCalls []json.RawMessage `json:"tool_calls"`
		} `json:"delta"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Error json.RawMessage `json:"error"`
}

// hasToken reports whether a chunk has something of the answer, or its end. The role alone is nothing.
func (e *event) hasToken() bool {
	for _, c := range e.Choices {
		if c.Delta.Content != "" || c.Delta.Refusal != "" || len(c.Delta.ToolCalls) > 0 || c.FinishReason != "" {
			return true
		}
	}
	return false
}
