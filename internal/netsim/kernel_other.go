//go:build !linux

package netsim

// NewKernel returns [ErrUnsupported]: namespaces are Linux's.
func NewKernel(uint64, ...string) (*Network, error) { return nil, ErrUnsupported }
