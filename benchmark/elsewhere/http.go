package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/conncount"
	"github.com/gohedge/hedge/internal/dnstest"
)

const (
	callHeader    = "Call"
	attemptHeader = "Attempt"
)

// addresses resolves any name to the addresses of a fleet.
type addresses struct {
	ips     []netip.Addr
	rotates bool
	asked   atomic.Int64
}

func (a *addresses) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	ips := slices.Clone(a.ips)
	if a.rotates {
		n := int(a.asked.Add(1)) % len(ips)
		ips = append(ips[n:], ips[:n]...)
	}
	return ips, nil
}

func httpStrategies(f *fleet, secure, http2 bool) ([]strategy, error) {
	names := &addresses{rotates: f.world == "rotate"}
	port, scheme := "0", "http://"
	server, client := new(tls.Config), new(tls.Config)
	if secure {
		server, client = dnstest.Certificate()
		scheme = "https://"
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	for n := range f.n {
		l, err := f.net.listenAt(n, port)
		if err != nil {
			return nil, err
		}
		at, err := netip.ParseAddrPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		port = strconv.Itoa(int(at.Port()))
		names.ips = append(names.ips, at.Addr())
		s := &http.Server{TLSConfig: server.Clone(), Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := f.serve(r.Context(), n, number(r.Header[callHeader]), int(number(r.Header[attemptHeader]))); err == nil {
				_, _ = io.WriteString(w, "answer")
			}
		})}
		go func() {
			if secure {
				_ = s.ServeTLS(conncount.Listener{Listener: l, Accepted: &f.accepted}, "", "")
			} else {
				_ = s.Serve(conncount.Listener{Listener: l, Accepted: &f.accepted})
			}
		}()
		f.onClose(func() { s.Close() })
	}
	dead := netip.Addr{}
	if f.world == "dead" && f.n > 1 {
		dead = names.ips[1]
	}
	// dial connects as a base does: to the first address of a name that answers.
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		ips := []netip.Addr{}
		if ip, err := netip.ParseAddr(host); err == nil {
			ips = append(ips, ip)
		} else if ips, err = names.LookupNetIP(ctx, "ip", host); err != nil {
			return nil, err
		}
		var errs []error
		for _, ip := range ips {
			if ip == dead {
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(10 * time.Second):
					errs = append(errs, fmt.Errorf("%v does not answer", ip))
					continue
				}
			}
			conn, err := f.net.dial(ctx, network, net.JoinHostPort(ip.String(), port))
			if err == nil {
				return conn, nil
			}
			errs = append(errs, err)
		}
		return nil, errors.Join(errs...)
	}
	var all []strategy
	for _, name := range []string{"none", "same host", "replicas"} {
		base := &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 256, TLSClientConfig: client.Clone(), Protocols: protocols}
		rt := http.RoundTripper(base)
		opts := []hedge.Option{hedge.WithBurst(f.burst), hedge.WithAttemptHeader(attemptHeader)}
		if name == "replicas" {
			opts = append(opts, hedge.WithReplicas(names))
		}
		shut := base.CloseIdleConnections
		if name != "none" {
			tr := hedge.New(base, opts...)
			rt, shut = tr, tr.CloseIdleConnections
		}
		url := scheme + net.JoinHostPort(dnstest.Name, port)
		all = append(all, strategy{name, func(ctx context.Context, id int64) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			req.Header.Set(callHeader, strconv.FormatInt(id, 10))
			resp, err := rt.RoundTrip(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		}, shut})
	}
	return all, nil
}
