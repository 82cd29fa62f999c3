package hedgebalancer

import (
	"encoding/json"
	"strings"
)

const (
	policyName           = "hedge_elsewhere"                // name of this policy in service configs
	outlierDetectionName = "outlier_detection_experimental" // name of gRPC's outlier detection (gRFC A50)
)

// selectBelowOutlierDetection returns the configuration of outlier detection in text, with one change: its child policy
// becomes hedge_elsewhere, whose child policy is the original one. So outlier detection does not observe unused picks,
// and hedges avoid ejected backends.
//
// If the child policy is hedge_elsewhere already, or text is not valid, the result is text.
func selectBelowOutlierDetection(text json.RawMessage) json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) != nil || fields == nil {
		return text
	}
	own := make(map[string]json.RawMessage, 1)
	for name, value := range fields {
		if !strings.EqualFold(name, "childPolicy") { // gRPC ignores the case
			continue
		}
		var policies []map[string]json.RawMessage
		if json.Unmarshal(value, &policies) == nil && len(policies) > 0 && policies[0][policyName] != nil {
			return text
		}
		delete(fields, name)
		own["childPolicy"] = value
	}
	var err error
	if fields["childPolicy"], err = json.Marshal([]map[string]any{{policyName: own}}); err != nil {
		return text
	}
	changed, err := json.Marshal(fields)
	if err != nil {
		return text
	}
	return changed
}
