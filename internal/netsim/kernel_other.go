//go:build !linux

package netsim

// NewKernel returns [ErrUnsupported]: only Linux has namespaces.
func NewKernel(uint64, ...string) (*Network, error) { return nil, ErrUnsupported }
