package serviceconfig_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gohedge/hedge/internal/serviceconfig"
)

// FuzzServiceConfig reads what may be a service config: what is accepted, gRPC accepts, and what A6 forbids is not.
func FuzzServiceConfig(f *testing.F) {
	f.Add(policy(`"maxAttempts": 3, "hedgingDelay": "0.05s", "nonFatalStatusCodes": ["UNAVAILABLE", 10]`))
	f.Add(policy(`"maxAttempts": "nonsense"`))
	f.Add(policy(`"MAXATTEMPTS": 1e99, "hedgingDelay": "315576000000.999999999s"`))
	f.Add(`{"methodConfig": [{"name": [{}, {"service": "a.B", "method": "C"}], "retryPolicy": {}}], "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}}`)
	f.Add(`{"methodConfig": [null, {"name": null}], "methodConfig": []}`)
	f.Add(`{"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": []}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := serviceconfig.Parse(text)
		if err != nil {
			require.Nil(t, c)
			require.NotEmpty(t, err.Error())
			return
		}
		conn, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(text))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		for _, method := range []string{"", "/s/m", "/a.B/C"} {
			if p := c.Policy(method); p != nil {
				require.True(t, p.Attempts >= 2 && p.Attempts <= 5)
				require.GreaterOrEqual(t, p.Delay, p.Delay*0)
				require.False(t, p.NonFatal(0))
				require.False(t, c.Retries(method))
			}
		}
		if th := c.Throttling; th != nil {
			require.True(t, th.Max > 0 && th.Max <= 1_000_000 && th.Ratio > 0)
		}
	})
}
