//go:build !linux

package netsim

import "net/netip"

// NewKernel returns [ErrUnsupported], because only Linux has namespaces.
func NewKernel(uint64, ...string) (*Network, error) { return nil, ErrUnsupported }

// A Namespace is a network namespace. It exists on Linux only.
type Namespace struct{}

// NewNamespace returns [ErrUnsupported], because only Linux has namespaces.
func NewNamespace(netip.Prefix) (*Namespace, error) { return nil, ErrUnsupported }

// Do returns [ErrUnsupported].
func (*Namespace) Do(func() error) error { return ErrUnsupported }

// Close does nothing.
func (*Namespace) Close() error { return nil }
