package hedgebalancer_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/serviceconfig"
)

// A configRecorder stands in for outlier detection and records its configuration.
type configRecorder struct {
	balancer.Builder
	text string
}

var outlierDetection = new(configRecorder)

func init() { balancer.Register(outlierDetection) }

func (*configRecorder) Name() string { return "outlier_detection_experimental" }

func (r *configRecorder) ParseConfig(text json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	r.text = string(text)
	return nil, nil
}

func TestParseConfigPutsPolicyBelowOutlierDetection(t *testing.T) {
	for config, want := range map[string]string{
		`{"interval":"1s","childPolicy":[{"no_such":{}},{"pick_first":{"shuffleAddressList":true}}]}`: `{"interval":"1s","childPolicy":[{"hedge_elsewhere":
			{"childPolicy":[{"no_such":{}},{"pick_first":{"shuffleAddressList":true}}]}}]}`,
		`{"ChildPolicy":[{"round_robin":{}}]}`:                     `{"childPolicy":[{"hedge_elsewhere":{"childPolicy":[{"round_robin":{}}]}}]}`,
		`{"interval":"1s"}`:                                        `{"interval":"1s","childPolicy":[{"hedge_elsewhere":{}}]}`,
		`{"childPolicy":[{"hedge_elsewhere":{"childPolicy":[]}}]}`: `{"childPolicy":[{"hedge_elsewhere":{"childPolicy":[]}}]}`,
		`{"childPolicy":"of another type"}`:                        `{"childPolicy":[{"hedge_elsewhere":{"childPolicy":"of another type"}}]}`,
		`["no object"]`:                                            `["no object"]`,
		`null`:                                                     `null`,
		`{"childPolicy":[{"round_robin":{}},{"hedge_elsewhere":{}}]}`: `{"childPolicy":[{"hedge_elsewhere":{"childPolicy":[{"round_robin":{}},{"hedge_elsewhere":{}}]}}]}`,
	} {
		_, err := balancer.Get("hedge_elsewhere").(balancer.ConfigParser).ParseConfig([]byte(`{"childPolicy":[{"outlier_detection_experimental":` + config + `}]}`))
		require.NoError(t, err, config)
		assert.JSONEq(t, want, outlierDetection.text, config)
	}
}
