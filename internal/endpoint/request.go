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

// Prepare rewrites request r for the endpoint of a, and then calls the user's Prepare function of that endpoint. It
// must be called when the attempt starts. An error means that the user's function failed or left r unusable. A nil
// Attempt leaves r unchanged.
//
// If r has a body, the caller must have set r.GetBody to a function that returns a copy of the body.
//
// The argument attemptHeader is the name of the header in which the library has put the number of a hedge. Prepare does
// not remove that header. It is "" if the request has no such header.
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

// rewriteRequest changes r from a request to the endpoint first into a request to e. It replaces r.URL and r.Header by
// copies, because other attempts may share the originals.
//
// The argument attemptHeader is the name of the header in which the library has put the number of a hedge; that header
// is not removed. It is "" if there is no such header.
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

// callPrepare calls the user's Prepare function for r and checks the changed request. It closes the body of r if the
// function returns an error, panics or calls [runtime.Goexit].
func (e *endpoint) callPrepare(r *http.Request) (err error) {
	getBody := r.GetBody
	if !httpattempt.HasBody(r) {
		getBody, r.GetBody = nil, nil // otherwise GetBody would return an empty body after Prepare has set another body
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

// An originalBody wraps the request body that the user's Prepare function receives. By its type, rewindBody detects
// whether Prepare has replaced the body.
type originalBody struct{ io.ReadCloser }

// rewindBody replaces r.Body by a new copy of the original body, because the user's Prepare function may have read from
// it. If Prepare has set another body, rewindBody leaves that body unchanged. The function getBody returns a copy of
// the original body; it is nil if r had no body.
func rewindBody(r *http.Request, getBody func() (io.ReadCloser, error)) (err error) {
	if getBody == nil {
		return nil
	}
	if _, isOriginal := r.Body.(*originalBody); isOriginal {
		r.Body, err = getBody()
		r.GetBody = getBody
		return err
	}
	if r.GetBody != nil { // GetBody may still return the original body
		body, err := r.GetBody()
		if _, isOriginal := body.(*originalBody); isOriginal || err != nil {
			r.GetBody = nil
		} else if body != nil {
			_ = body.Close()
		}
	}
	return nil
}

// ErrForeignRedirect is the error of an attempt whose response redirects to a URL that cannot be mapped to the first
// endpoint. The caller may not follow that redirect, because the URL may belong to a foreign host or contain a secret.
var ErrForeignRedirect = errors.New("redirects to a host that is not among the endpoints, or with a secret in the URL")

// RestoreResponse changes resp so that the caller sees a response of the first endpoint. The argument sent is the
// request that was sent to the endpoint of a. A nil Attempt leaves resp unchanged.
//
// RestoreResponse removes cookies, because the caller would store them for the first endpoint. It maps the URL of a
// redirect to the first endpoint. If that is impossible, it closes the body of resp and returns an error that wraps
// [ErrForeignRedirect].
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
			return fmt.Errorf("hedge: endpoint %s %w", set.endpoints[a.endpoint].givenURL, ErrForeignRedirect)
		}
		header = header.Clone()
		header.Set("Location", to.String())
	}
	resp.Header = header
	return nil
}

// mapToFirst converts a URL at any endpoint of s to the equivalent URL at the first endpoint. It returns
// [ErrForeignRedirect] if there is no equivalent. A URL with a query parameter that is not in Keep has no equivalent,
// because the parameter may be a secret.
//
// The argument answered is the index of the endpoint that sent the URL. That endpoint takes precedence if several
// endpoints have the same host.
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
	return nil, ErrForeignRedirect
}
