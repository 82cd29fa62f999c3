package integration

import (
	"context"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/gohedge/hedge"
)

func TestKubernetes(t *testing.T) {
	const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"shop","uid":"17"}}`
	var primaries, hedges sync.Map // remote addresses
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(number) == "" {
			primaries.Store(r.RemoteAddr, true)
		} else {
			hedges.Store(r.RemoteAddr, true)
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Has("watch"):
			fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", pod)
		default:
			fmt.Fprint(w, pod)
		}
	}), func(s *httptest.Server) {
		s.EnableHTTP2 = true
		s.StartTLS()
	})
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	config := func() *rest.Config {
		cfg := &rest.Config{Host: s.URL, BearerToken: "token", TLSClientConfig: rest.TLSClientConfig{CAData: certificate}}
		cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
			_, is := rt.(*http.Transport)
			assert.False(t, is, "an *http.Transport would be cloned for hedges")
			return numbered{rt}
		})
		return cfg
	}
	plain, err := dynamic.NewForConfig(config())
	require.NoError(t, err)

	cfg := config()
	var transport *hedge.Transport

	reads := func(r *http.Request) bool {
		q := r.URL.Query()
		return r.Method == http.MethodGet && !q.Has("watch") && !q.Has("follow")
	}
	clone := rest.CopyConfig(cfg)
	clone.Dial = new(net.Dialer).DialContext // connections of its own
	hedgeVia, err := rest.TransportFor(clone)

	require.NoError(t, err)

	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		transport = hedge.New(rt, hedge.WithHedgeTransport(hedgeVia), hedge.WithHedgeable(reads))
		return transport
	})
	client, err := dynamic.NewForConfig(cfg)

	require.NoError(t, err)
	fetch := func(c dynamic.Interface) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			pod, err := c.Resource(pods).Namespace("shop").Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			return string(pod.GetUID()), nil
		}
	}
	assert.Equal(t, "17", same(t, s, transport, fetch(plain), fetch(client)))
	hedges.Range(func(from, _ any) bool {
		_, both := primaries.Load(from)
		return assert.False(t, both, "a hedge came over a primary's connection")
	})

	once(t, s, func(ctx context.Context) error {
		w, err := client.Resource(pods).Namespace("shop").Watch(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		defer w.Stop()
		event := <-w.ResultChan()
		assert.EqualValues(t, "ADDED", event.Type)
		return nil
	})
	once(t, s, func(ctx context.Context) error {
		return client.Resource(pods).Namespace("shop").Delete(ctx, "web", metav1.DeleteOptions{})
	})
}
