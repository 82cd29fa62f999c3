package integration

import (
	"context"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/gohedge/hedge"
)

// TestEtcd has three members. The client reaches one of them through a proxy that becomes slow.
func TestEtcd(t *testing.T) {
	const latency = 3 * time.Second

	var endpoints []string
	for _, m := range members(t, 3) {
		endpoints = append(endpoints, m.Clients[0].Addr().String())
	}
	through, slower := proxied(t, endpoints[0])
	endpoints[0] = through

	plain, err := clientv3.New(clientv3.Config{Endpoints: endpoints[1:], Logger: zap.NewNop()})
	require.NoError(t, err)
	defer plain.Close()
	var stats *hedge.Stats

	hedging := hedge.NewUnaryClientInterceptor(hedge.WithStats(&stats), hedge.WithMethods("/etcdserverpb.KV/Range"))
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   endpoints,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(hedging)},
		Logger:      zap.NewNop(),
	})

	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	_, err = plain.Put(ctx, "lamps", "three")
	require.NoError(t, err)
	want, err := plain.Get(ctx, "lamps")
	require.NoError(t, err)

	// A member that has answered has a connection.
	for answered := make(map[uint64]bool); len(answered) < 3; {
		got, err := client.Get(ctx, "lamps")
		require.NoError(t, err)
		answered[got.Header.MemberId] = true
	}
	slower(latency)

	for stats.HedgeWins.Load() < 2 { // calls go to the members in turn
		start := time.Now()
		got, err := client.Get(hedge.WithDelay(ctx, delay), "lamps")
		require.NoError(t, err)
		require.Equal(t, want.Kvs, got.Kvs)
		require.Less(t, time.Since(start), latency)
	}

	passed := stats.NotHedgeable.Load()
	for range 3 {
		_, err := client.Put(hedge.WithDelay(ctx, delay), "chairs", "four")
		require.NoError(t, err)
	}
	got, err := plain.Get(ctx, "chairs")
	require.NoError(t, err)
	assert.EqualValues(t, 3, got.Kvs[0].Version, "each Put was applied once")
	assert.EqualValues(t, 3, stats.NotHedgeable.Load()-passed)
}

// members starts an etcd cluster. A cluster must know its addresses before it listens, so its members
// use sockets in a directory of the test.
func members(t *testing.T, n int) []*embed.Etcd {
	if runtime.GOOS == "windows" {
		t.Skip("etcd names a socket host:port, which cannot be a file name here")
	}
	t.Chdir(t.TempDir())
	anywhere := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	var cluster []string
	for i := range n {
		cluster = append(cluster, fmt.Sprintf("m%d=unix://m:%d", i, i))
	}
	var all []*embed.Etcd
	for i := range n {
		cfg := embed.NewConfig()
		cfg.Name, cfg.Dir = fmt.Sprintf("m%d", i), t.TempDir()
		cfg.InitialCluster = strings.Join(cluster, ",")
		cfg.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: fmt.Sprintf("m:%d", i)}}
		cfg.AdvertisePeerUrls = cfg.ListenPeerUrls
		cfg.ListenClientUrls = []url.URL{anywhere}
		cfg.AdvertiseClientUrls = cfg.ListenClientUrls
		cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		e, err := embed.StartEtcd(cfg)
		require.NoError(t, err)
		t.Cleanup(e.Close)
		all = append(all, e)
	}
	for _, e := range all {
		select {
		case <-e.Server.ReadyNotify():
		case <-time.After(limit):
			t.Fatal("the cluster has no leader")
		}
	}
	return all
}
