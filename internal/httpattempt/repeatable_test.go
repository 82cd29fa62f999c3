package httpattempt_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/httpattempt"
)

// isRepeatable reports whether a GET of a URL with one header field may be sent twice.
func isRepeatable(t *testing.T, url, name, value string) bool {
	req, err := http.NewRequest("GET", url, nil)
	require.NoError(t, err)
	if name != "" {
		req.Header[name] = []string{value}
	}
	h := new(httpattempt.Requests).CopyHeader(req.Header, httpattempt.AttemptHeaders{})
	return httpattempt.IsRepeatable(req, h, 1<<16, false)
}

func TestIsRepeatableRejectsSingleUseCredentials(t *testing.T) {
	const site = "https://pay.test/orders"
	for _, query := range []string{
		"nonce=1", "a=1&NONCE=1", "noncestr=1", "nonceStr=1", "nonce_str=1", "nonce-str=1", "auth%5Bnonce%5D=1", "auth[nonce]=1", "nonce[]=1", "nonce%5B%5D=1",
		"%6Eonce=1", "non%63e=1", "%6e%6f%6e%63%65=1", "nonce%zz=1", "%zz%6Eonce=1", "a=1;nonce=1", "a&nonce=1", "_wpnonce=1", "x.nonce.y=1", "xnnonce=1", "nononce=1",
		"ticket=ST-1-abc", "service=s&ticket=PT-1", "ticket=ST%2D1", "%74icket=ST-1", "code=1&state=2", "state=2&session_state=3&code=1", "oauth_token=1&oauth_verifier=2",
		"SAMLart=1", "SAMLResponse=1&RelayState=2", "otp=123456",
		"appid=a&secret=s&code=c&grant_type=authorization_code", "grant_type=refresh_token&refresh_token=r", "appid=a&secret=s&js_code=c",
		"client_id=a&client_secret=s&code=c", "code=c&code_verifier=v",
	} {
		assert.False(t, isRepeatable(t, site+"?"+query, "", ""), query)
	}
	for _, url := range []string{
		"https://cas.test/cas/serviceValidate?service=s&ticket=1", "https://cas.test/p3/proxyValidate/?ticket=T", "https://cas.test/validate?ticket=1",
		"https://pay.test/orders;nonce=1/items", "https://pay.test/orders;nonce=1",
	} {
		assert.False(t, isRepeatable(t, url, "", ""), url)
	}
	for _, field := range [][2]string{
		{"X-Nonce-Str", "1"}, {"Nonce", "1"}, {"x-ca-nonce", "1"}, {"X-Noncestr", "1"}, {"Nonce-Id", "1"}, {"X-Auth-Nonce-Value", "1"},
		{"Authorization", `WECHATPAY2-SHA256-RSA2048 mchid="1",nonce_str="2",signature="3"`}, {"Authorization", `Hawk id="1", ts="2", nonce = "3"`},
		{"Proxy-Authorization", `Own noncestr=1`}, {"X-Authorization", `Own nonce=1`}, {"Authorization", "Own\tnonceStr\t=1"},
		{"X-Wsse", `UsernameToken Username="u", Nonce="1"`}, {"Signature-Input", `sig1=("@path");created=1;nonce="2"`},
	} {
		assert.False(t, isRepeatable(t, site, field[0], field[1]), field)
	}
}

func TestIsRepeatableAcceptsNamesSimilarToNonce(t *testing.T) {
	for _, query := range []string{
		"", "q=nonce", "q=nonce&lang=en", "q=a%3Dnonce", "announce=1", "once=1", "noce=1", "nonc=e", "code=DE", "state=NY", "code=", "ticket=42", "ticket=STAR", "tickets=ST-1", "%zz=1", "%", "a;b", "&&;=",
	} {
		assert.True(t, isRepeatable(t, "https://shop.test/items?"+query, "", ""), query)
	}
	for _, field := range [][2]string{{"Announce", "1"}, {"Accept-Encoding", "gzip"}, {"Authorization", "Bearer nonce"}, {"Authorization", `Own id="nonce", sig="1"`}, {"X", "nonce=1"}} {
		assert.True(t, isRepeatable(t, "https://shop.test/nonce/items", field[0], field[1]), field)
	}
}

func TestHostNameConvertsToASCII(t *testing.T) {
	for _, host := range []string{"bücher.example", "BÜCHER.example", "bücher.example.:80", "xn--bcher-kva.example", "XN--BCHER-KVA.example"} {
		assert.Equal(t, "xn--bcher-kva.example", httpattempt.HostName("http", host))
		assert.Equal(t, "xn--bcher-kva.example", httpattempt.HostOnly(host))
	}
	assert.Equal(t, "xn--bcher-kva.example:8080", httpattempt.HostName("https", "bücher.example:8080"))
	assert.NotEqual(t, httpattempt.HostName("http", "\xff.example"), httpattempt.HostName("http", "\xfe.example"), "bytes that are no text")
	for _, host := range []string{"\xff", "ü ü", "ü:ü", strings.Repeat("ü", 300)} {
		name := httpattempt.HostName("http", host)
		assert.Equal(t, name, httpattempt.HostName("http", name), "a host that has no such name has one name")
		assert.NotEmpty(t, httpattempt.HostOnly(host))
	}
}

func TestHostNameCanonicalizesIPv6(t *testing.T) {
	for _, host := range []string{"[2001:db8::1]", "[2001:DB8::1]", "[2001:db8:0:0::1]", "[2001:0db8::0001]:80", "[2001:db8::1]:80"} {
		assert.Equal(t, "[2001:db8::1]", httpattempt.HostName("http", host))
	}
	assert.Equal(t, "[2001:db8::1]:8080", httpattempt.HostName("http", "[2001:DB8::0:1]:8080"))
	assert.Equal(t, "[fe80::1%eth0]", httpattempt.HostName("https", "[FE80::1%25eth0]:443"))
	assert.Equal(t, "[::1", httpattempt.HostName("http", "[::1"))
	assert.Equal(t, "[]", httpattempt.HostName("http", "[]"))
}
