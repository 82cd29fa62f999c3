package ops

import (
	"encoding/json"
	"net/url"
)

// An Override holds the settings that a file sets while a program runs. They take precedence over the options of the program
// and over Update, and environment variables take precedence over them. The zero value overrides nothing. An Override and its
// maps must not be changed after it was passed to [Overridable.ApplyOverride].
type Override struct {
	Mode     Mode                       // mode of the client; "": not set
	Disabled bool                       // hedging is switched off
	Config   map[string]json.RawMessage // settings by their name in JSON, such as "budget_percent"
	Routes   map[string]bool            // patterns of HTTP requests, for log messages; calls of false patterns are not hedged
	Methods  map[string]bool            // patterns of gRPC methods, for log messages; calls of false patterns are not hedged

	// ExcludesRequest reports whether Routes forbids hedges of an HTTP request; nil: all requests may be hedged.
	ExcludesRequest func(method, host string, u *url.URL) bool
	// ExcludesMethod reports whether Methods forbids hedges of a gRPC method; nil: all methods may be hedged.
	ExcludesMethod func(method string) bool
}

// An Overridable is a client whose settings an [Override] can change at run time.
type Overridable interface {
	// CheckOverride returns an error if the settings of o are invalid together with the other settings of the client.
	CheckOverride(o *Override) error
	// ApplyOverride replaces the Override of the client for calls that start afterwards, and logs each change. It returns the
	// previous Override, with which the caller can undo the change.
	//
	// If the settings are invalid, it returns the error of CheckOverride. Then it changes nothing and previous is nil, except
	// that an Override with Disabled switches hedging off nevertheless.
	ApplyOverride(o *Override) (previous *Override, err error)
	// Log returns the log of the client.
	Log() *Log
}

// FindOverridable returns the [Overridable] of a client: a pointer to a Transport, an Interceptor or a Hedger. It returns nil
// for another value and for a client that no constructor has made. Package hedge sets it when it is initialized. So package
// steering can change clients, and package hedge need not export methods for that.
var FindOverridable func(client any) Overridable
