package resume_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/resume"
)

// url.ParseQuery drops parameters with a raw semicolon, which servers accept.
func TestByteRangeOfRejectsSignedURLWithRange(t *testing.T) {
	for query, want := range map[string]resume.Obstacle{
		"X-Amz-SignedHeaders=host%3Brange":             resume.Signed,
		"X-Amz-SignedHeaders=host;range":               resume.Signed,
		"x=1&X-Goog-SignedHeaders=host;range&y=2":      resume.Signed,
		"X-Amz-SignedHeaders=range":                    resume.Signed,
		"X-Amz-SignedHeaders=host%3bif-range":          resume.Signed,
		"X-Amz-SignedHeaders=host;x-range":             "",
		"X-Amz-SignedHeaders=host&other=range":         "",
		"a=X-Amz-SignedHeaders&X-Amz-SignedHeaders=ho": "",
		"x-oss-additional-headers=host%3brange":        resume.Signed,
		"q-header-list=host;Range&q-signature=0a":      resume.Signed,
		"q-header-list=host":                           "",
		"range=1":                                      "",
		"X-Tos-SignedHeaders=host%3Brange":             resume.Signed,
		"X-EMS-SignedHeaders=host;range":               resume.Signed,
		"X-SignedHeaders=host%3Brange":                 resume.Signed,
		"sign=q-sign-algorithm%3Dsha1%26q-header-list%3Dhost%3Brange%26q-signature%3D0a": resume.Signed,
		"authorization=bce-auth-v1%2Fa%2F2026%2F300%2Fhost%3Brange%2F0a":                 resume.Signed,
		"authorization=bce-auth-v1%2Fa%2F2026%2F300%2Fhost%2F0a&range=1":                 "",
		"type=signature&range=1": "",
	} {
		req, err := http.NewRequest(http.MethodGet, "https://example.com/x?"+query, nil)
		require.NoError(t, err)
		assert.Equal(t, want, signingObstacle(req), query)
	}
}

// signingObstacle returns the obstacle to a request for the remainder of a body of 1 MiB.
func signingObstacle(req *http.Request) resume.Obstacle {
	_, why := resume.ByteRangeOf(req, &http.Response{
		StatusCode: http.StatusOK, ContentLength: 1 << 20, Body: io.NopCloser(strings.NewReader("")),
		Header: http.Header{"Etag": {`"1"`}, "Accept-Ranges": {"bytes"}},
	})
	return why
}

func TestByteRangeOfRejectsSignedHeaderWithRange(t *testing.T) {
	for _, c := range []struct {
		header, value string
		want          resume.Obstacle
	}{
		{"Authorization", "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;range, Signature=0a", resume.Signed},
		{"Authorization", "AWS4-HMAC-SHA256 Credential=a/b,SignedHeaders=host; range,Signature=0a", resume.Signed},
		{"Authorization", "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=0a", ""},
		{"Authorization", "OSS4-HMAC-SHA256 Credential=a/b,AdditionalHeaders=host;range,Signature=0a", resume.Signed},
		{"Authorization", "OSS4-HMAC-SHA256 Credential=a/b,Signature=0a", ""},
		{"Authorization", "q-sign-algorithm=sha1&q-ak=a&q-header-list=host;range&q-url-param-list=&q-signature=0a", resume.Signed},
		{"Authorization", "q-sign-algorithm=sha1&q-ak=a&q-header-list=host&q-url-param-list=range&q-signature=0a", ""},
		{"Authorization", `Signature keyId="a",headers="(request-target) host range",signature="AA=="`, resume.Signed},
		{"Signature", `keyId="a",headers="(request-target) host range",signature="AA=="`, resume.Signed},
		{"Signature-Input", `sig1=("@method" "range");keyid="a"`, resume.Signed},
		{"Authorization", "Bearer range", ""},
		{"Authorization", "Basic range", ""},
		{"Authorization", "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=\"host;range\", Signature=0a", resume.Signed},
		{"Authorization", "AWS4-HMAC-SHA256 Credential=a/b SignedHeaders=host;range Signature=0a", resume.Signed},
		{"Authorization", "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-range;range-x, Signature=range", ""},
		{"Authorization", "SDK-HMAC-SHA256 Access=a, SignedHeaders=host,range, Signature=0a", resume.Signed},
		{"Authorization", "OSS2 AccessKeyId:a,AdditionalHeaders:host;range,Signature:0a", resume.Signed},
		{"Authorization", "OSS2 AccessKeyId:a,Signature:0a", ""},
		{"Authorization", "bce-auth-v1/a/2026-01-01T00:00:00Z/300/host;range;x-bce-date/0a", resume.Signed},
		{"Authorization", "bce-auth-v1/a/2026-01-01T00:00:00Z/300/host;x-bce-date/0a", ""},
		{"Authorization", `hmac username="a", algorithm="hmac-sha256", headers="date range", signature="AA=="`, resume.Signed},
		{"Authorization", `hmac username="a", algorithm="hmac-sha256", headers="date", signature="AA=="`, ""},
		{"X-Authorization", "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;range, Signature=0a", resume.Signed},
		{"X-Ca-Signature-Headers", "X-Ca-Key,Range", resume.Signed},
		{"X-Hmac-Signed-Headers", "User-Agent;range", resume.Signed},
		{"X-Hmac-Signed-Headers", "User-Agent", ""},
		{"Access-Control-Request-Headers", "range", ""},
	} {
		req, err := http.NewRequest(http.MethodGet, "https://example.com/x", nil)
		require.NoError(t, err)
		req.Header.Set(c.header, c.value)
		assert.Equal(t, c.want, signingObstacle(req), c.value)
	}
}
