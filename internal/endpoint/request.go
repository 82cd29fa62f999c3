package endpoint

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/gohedge/hedge/internal/httpattempt"
)

// Prepare makes r the request to a's endpoint, and has the user's Prepare change it. If r has a body, r.GetBody must return it. The header
// attemptHeader, with which a hedge says that it is one, is kept; "" stands for none. An error is one of Prepare. A nil Attempt leaves r as it is.
func (a *Attempt) Prepare(r *http.Request, attemptHeader string) error {
	if a == nil {
		return nil
	}
	a.started.Store(int64(time.Since(a.selection.began)))
	if a.endpoint == 0 {
		return nil
	}
	to := &a.selection.set.endpoints[a.endpoint]
	if a.number == 0 {
		attemptHeader = "" // the header would be the caller's own
	}
	to.rewriteRequest(r, &a.selection.set.endpoints[0], attemptHeader)
	if to.prepare == nil {
		return nil
	}
	return to.callPrepare(r)
}

// rewriteRequest makes r, whose URL and header other attempts may share, a request to e instead of to the first endpoint. It keeps the header
// attemptHeader, which is the library's own; "" stands for none.
func (e *endpoint) rewriteRequest(r *http.Request, first *endpoint, attemptHeader string) {
	u := *r.URL
	rest, _ := first.cutBasePath(u.EscapedPath())
	escaped := e.basePath + rest
	if path, err := url.PathUnescape(escaped); err == nil {
		u.Path, u.RawPath = path, escaped
	}
	u.Scheme, u.Host, u.User = e.scheme, e.authority, nil
	u.RawQuery, _ = e.filterQuery(u.RawQuery)
	header := make(http.Header, len(r.Header))
	for name, values := range r.Header {
		if isSent, _ := e.classifyHeader(name); isSent || name == attemptHeader && attemptHeader != "" {
			header[name] = append([]string(nil), values...)
		}
	}
	r.URL, r.Header, r.Host = &u, header, e.authority
	httpattempt.CloneForms(r)
}

// callPrepare calls the user's Prepare for r. If that fails, panics or ends the goroutine, it closes the body of r.
func (e *endpoint) callPrepare(r *http.Request) (err error) {
	getBody := r.GetBody
	if !httpattempt.HasBody(r) {
		getBody, r.GetBody = nil, nil // or it would return an empty body where Prepare sets another one
	}
	if getBody != nil {
		getOriginal := func() (io.ReadCloser, error) {
			body, err := getBody()
			return &originalBody{body}, err
		}
		r.GetBody = getOriginal
		r.Body, _ = getOriginal()
	}
	returned := false
	defer func() {
		if (!returned || err != nil) && r.Body != nil {
			_ = r.Body.Close()
		}
	}()
	err = e.prepare(r)
	switch returned = true; {
	case err != nil:
		return fmt.Errorf("hedge: endpoint %s: Prepare: %w", e.givenURL, err)
	case r.URL == nil || r.Header == nil:
		return fmt.Errorf("hedge: endpoint %s: Prepare left no URL or no Header", e.givenURL)
	}
	return rewindBody(r, getBody)
}

// An originalBody marks the request body that Prepare got: any other body is one that Prepare has set.
type originalBody struct{ io.ReadCloser }

// rewindBody makes r.Body readable from its start again, as Prepare may have read it. It leaves a body that Prepare has set. getBody returns
// the original body; nil: there was none.
func rewindBody(r *http.Request, getBody func() (io.ReadCloser, error)) (err error) {
	if getBody == nil {
		return nil
	}
	if _, isOriginal := r.Body.(*originalBody); isOriginal {
		r.Body, err = getBody()
		r.GetBody = getBody
		return err
	}
	if r.GetBody != nil { // which may be that of the original body still
		body, err := r.GetBody()
		if _, isOriginal := body.(*originalBody); isOriginal || err != nil {
			r.GetBody = nil
		} else if body != nil {
			_ = body.Close()
		}
	}
	return nil
}

// ErrRedirectLeaves is the error of an attempt whose redirect has no equivalent at the first endpoint.
var ErrRedirectLeaves = errors.New("redirects to a host that is not among the endpoints, or with a secret in the URL")

// RestoreResponse changes resp, the response to sent, into a response of the first endpoint. It removes cookies, because the caller would
// store them for the first endpoint, and maps redirects to the first endpoint. If a redirect has no equivalent there, it closes the body
// and returns an error. A nil Attempt leaves resp unchanged.
func (a *Attempt) RestoreResponse(resp *http.Response, sent *http.Request) error {
	if a.IsFirstEndpoint() {
		return nil
	}
	set := a.selection.set
	if resp.Request == sent {
		shown := sent.WithContext(a.selection.ctx)
		shown.Body, shown.GetBody = nil, nil
		resp.Request = shown
	}
	header := resp.Header
	if _, has := header["Set-Cookie"]; has {
		header = header.Clone()
		delete(header, "Set-Cookie")
	}
	if location := header["Location"]; len(location) > 0 && location[0] != "" && resp.StatusCode >= 300 && resp.StatusCode <= 399 {
		to, err := sent.URL.Parse(location[0])
		if err == nil {
			to, err = set.mapToFirst(to, a.endpoint)
		}
		if err != nil {
			if resp.Body != nil {
				_ = resp.Body.Close()
			}
			return fmt.Errorf("hedge: endpoint %s %w", set.endpoints[a.endpoint].givenURL, ErrRedirectLeaves)
		}
		header = header.Clone()
		header.Set("Location", to.String())
	}
	resp.Header = header
	return nil
}

// mapToFirst maps the URL of a resource at one of the endpoints to its URL at the first endpoint. If endpoints share a host, it tries the
// endpoint that answered first. A URL with a parameter that is not in Keep is not mapped: the parameter may be a secret of the endpoint.
func (s *Set) mapToFirst(to *url.URL, answered int) (*url.URL, error) {
	for k := -1; k < len(s.endpoints); k++ {
		i := k
		if k < 0 {
			i = answered
		}
		e := &s.endpoints[i]
		if to.Scheme != e.scheme || httpattempt.HostName(to.Scheme, to.Host) != e.host || to.User != nil {
			continue
		}
		rest, ok := e.cutBasePath(to.EscapedPath())
		path, err := url.PathUnescape(s.endpoints[0].basePath + rest)
		if !ok || err != nil || hasDotSegment(rest) {
			continue
		}
		at := *to
		if i > 0 {
			var obstacle string
			if at.RawQuery, obstacle = e.filterQuery(to.RawQuery); obstacle != "" || hasParameters(rest) {
				continue
			}
		}
		at.Scheme, at.Host, at.Path, at.RawPath = s.endpoints[0].scheme, s.endpoints[0].authority, path, s.endpoints[0].basePath+rest
		return &at, nil
	}
	return nil, ErrRedirectLeaves
}
