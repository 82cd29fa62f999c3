package integration

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// away starts the server of another endpoint.
func away(t *testing.T, h http.Handler) *httptest.Server {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// met counts the requests that an endpoint has answered, and fails the test if one has what is not for it.
type met struct {
	t      *testing.T
	next   http.Handler
	secret string // of the other endpoint
	n      atomic.Int64
}

func (m *met) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.n.Add(1)
	if m.secret != "" {
		assert.NotContains(m.t, fmt.Sprint(r.Header, r.URL), m.secret)
	}
	m.next.ServeHTTP(w, r)
}

// A signedBucket is one of S3, with a copy of the objects of another one. It takes requests that are signed for it, and no others.
func signedBucket(t *testing.T, name, region string, keys aws.Credentials, objects map[string]string) http.Handler {
	backend := s3mem.New()
	require.NoError(t, backend.CreateBucket(name))
	for key, object := range objects {
		_, err := backend.PutObject(name, key, map[string]string{}, strings.NewReader(object), int64(len(object)), nil)
		require.NoError(t, err)
	}
	server := gofakes3.New(backend).Server()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := sigV4(r, region, keys, time.Now()); err != nil {
			http.Error(w, "<Error><Code>SignatureDoesNotMatch</Code><Message>"+err.Error()+"</Message></Error>", http.StatusForbidden)
			return
		}
		server.ServeHTTP(w, r)
	})
}

// sigV4 checks a request as "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)" of the Amazon S3 API
// reference has it. It returns what is wrong.
func sigV4(r *http.Request, region string, keys aws.Credentials, now time.Time) error {
	fields := map[string]string{}
	algorithm, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	for part := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		fields[name] = value
	}
	stamp := r.Header.Get("X-Amz-Date")
	at, err := time.Parse("20060102T150405Z", stamp)
	if err != nil || now.Sub(at).Abs() > 15*time.Minute {
		return fmt.Errorf("date %q is not now", stamp)
	}
	scope := stamp[:8] + "/" + region + "/s3/aws4_request"
	if algorithm != "AWS4-HMAC-SHA256" || fields["Credential"] != keys.AccessKeyID+"/"+scope {
		return fmt.Errorf("%s credential %q is not of %s", algorithm, fields["Credential"], scope)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if sum := sha256.Sum256(body); r.Header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(sum[:]) {
		return fmt.Errorf("the hash of the body is %x", sum)
	}
	signed := strings.Split(fields["SignedHeaders"], ";")
	var headers strings.Builder
	for _, name := range signed {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = fmt.Sprint(r.ContentLength)
		}
		fmt.Fprintf(&headers, "%s:%s\n", name, strings.TrimSpace(value))
	}
	for name := range r.Header {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-amz-") && !slices.Contains(signed, lower) {
			return fmt.Errorf("%s is not signed", name)
		}
	}
	if !slices.Contains(signed, "host") || !slices.IsSorted(signed) {
		return fmt.Errorf("signed headers %v", signed)
	}
	canonical := strings.Join([]string{r.Method, escaped(r.URL.Path, true), canonicalQuery(r.URL.Query()), headers.String(), fields["SignedHeaders"],
		r.Header.Get("X-Amz-Content-Sha256")}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	key := []byte("AWS4" + keys.SecretAccessKey)
	for _, part := range strings.Split(scope, "/") {
		key = mac(key, part)
	}
	if want := hex.EncodeToString(mac(key, "AWS4-HMAC-SHA256\n"+stamp+"\n"+scope+"\n"+hex.EncodeToString(sum[:]))); want != fields["Signature"] {
		return fmt.Errorf("signature %s is not %s of\n%s", fields["Signature"], want, canonical)
	}
	return nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = io.WriteString(h, text)
	return h.Sum(nil)
}

func canonicalQuery(q url.Values) string {
	var all []string
	for name, values := range q {
		for _, v := range values {
			all = append(all, escaped(name, false)+"="+escaped(v, false))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "&")
}

// escaped is UriEncode of that page: all but the unreserved characters, and slashes in a path.
func escaped(s string, path bool) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 || path && c == '/' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// The example of that page: "GET Object".
func TestSigV4OfThePage(t *testing.T) {
	keys := aws.Credentials{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}
	r := httptest.NewRequest("GET", "http://examplebucket.s3.amazonaws.com/test.txt", nil)
	r.Header = http.Header{
		"Range":                {"bytes=0-9"},
		"X-Amz-Date":           {"20130524T000000Z"},
		"X-Amz-Content-Sha256": {"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		"Authorization": {"AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request," +
			"SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
	}
	now := time.Date(2013, 5, 24, 0, 14, 0, 0, time.UTC)
	require.NoError(t, sigV4(r, "us-east-1", keys, now))
	assert.Error(t, sigV4(r, "us-west-2", keys, now))
	assert.Error(t, sigV4(r, "us-east-1", keys, now.Add(time.Hour)))
	assert.Error(t, sigV4(r, "us-east-1", aws.Credentials{AccessKeyID: keys.AccessKeyID, SecretAccessKey: "other"}, now))
	for _, change := range []func(*http.Request){
		func(r *http.Request) { r.Host = "other.s3.amazonaws.com" },
		func(r *http.Request) { r.URL.Path = "/test.tx" },
		func(r *http.Request) { r.URL.RawQuery = "a" },
		func(r *http.Request) { r.Header.Set("Range", "bytes=0-8") },
		func(r *http.Request) { r.Header.Set("X-Amz-Security-Token", "t") },
	} {
		changed := r.Clone(t.Context())
		change(changed)
		assert.Error(t, sigV4(changed, "us-east-1", keys, now))
	}
}

func TestReplicasOfABucket(t *testing.T) {
	object := strings.Repeat("what is in stock; ", 1<<16) // 1 MiB
	objects := map[string]string{"catalog": object, "menü/a+b c%2F:@*~": "crêpes"}
	ofFirst := aws.Credentials{AccessKeyID: "AKIAFIRST", SecretAccessKey: "secret of the first", SessionToken: "session of the first"}
	ofReplica := aws.Credentials{AccessKeyID: "AKIAREPLICA", SecretAccessKey: "secret of the replica", SessionToken: "session of the replica"}
	s := serve(t, &met{t: t, next: signedBucket(t, "shop", "eu-central-1", ofFirst, objects), secret: "of the replica"})
	far := &met{t: t, next: signedBucket(t, "shop-us", "us-west-2", ofReplica, objects), secret: "of the first"}
	firstURL, replicaURL := s.URL+"/shop", away(t, far).URL+"/shop-us"
	replicaKeys := credentials.StaticCredentialsProvider{Value: ofReplica}
	own := awshttp.NewBuildableClient().GetTransport()
	defer own.CloseIdleConnections()
	base := numbered{own}

	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }) // as S3 has it
	const ofNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  // the SHA-256 of no body
	sign := func(r *http.Request) error {
		keys, err := replicaKeys.Retrieve(r.Context())
		if err != nil {
			return err
		}
		r.Header.Set("X-Amz-Content-Sha256", ofNothing)
		return signer.SignHTTP(r.Context(), keys, r, ofNothing, "s3", "us-west-2", time.Now())
	}
	transport := hedge.New(base, hedge.WithEndpoints(
		hedge.Endpoint{URL: firstURL}, // https://s3.eu-central-1.amazonaws.com/shop
		hedge.Endpoint{URL: replicaURL, Prepare: sign, // https://s3.us-west-2.amazonaws.com/shop-us
			Keep: []string{"x-id", "list-type", "prefix", "delimiter", "start-after"}}))

	cfg := aws.Config{Region: "eu-central-1", BaseEndpoint: aws.String(s.URL), Credentials: credentials.StaticCredentialsProvider{Value: ofFirst}}
	paths := func(o *s3.Options) { o.UsePathStyle = true }
	client := func(rt http.RoundTripper) *s3.Client {
		return s3.NewFromConfig(cfg, paths, func(o *s3.Options) { o.HTTPClient, o.RetryMaxAttempts = &http.Client{Transport: rt}, 1 })
	}
	get := func(c *s3.Client, key string, part *string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("shop"), Key: aws.String(key), Range: part})
			if err != nil {
				return "", err
			}
			defer out.Body.Close()
			b, err := io.ReadAll(out.Body)
			return string(b), err
		}
	}
	plain, hedged := client(base), client(transport)
	for i, c := range []struct {
		key  string
		part *string
	}{{"catalog", nil}, {"catalog", aws.String("bytes=100-1099")}, {"menü/a+b c%2F:@*~", nil}} {
		same(t, s, transport, get(plain, c.key, c.part), get(hedged, c.key, c.part))
		require.EqualValues(t, i+1, far.n.Load(), "the hedge, and nothing else, is for the replica")
	}
	list := func(c *s3.Client) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			out, err := c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String("shop"), Prefix: aws.String("cat")})
			if err != nil {
				return "", err
			}
			return aws.ToString(out.Contents[0].Key), nil
		}
	}
	require.Equal(t, "catalog", same(t, s, transport, list(plain), list(hedged)))
	require.EqualValues(t, 4, far.n.Load())
	once(t, s, func(ctx context.Context) error {
		_, err := hedged.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String("shop"), Key: aws.String("new"), Body: strings.NewReader("new")})
		return err
	})
	require.EqualValues(t, 4, far.n.Load(), "a write goes to the first endpoint")
}

// A region is one of a Cosmos DB account: "Access control on Azure Cosmos DB resources" says how requests are signed, and "Consistency levels" what
// a session token asks for.
type region struct {
	key    []byte       // of the account, the same in all regions; no host takes part in a signature
	newest atomic.Int64 // write that it has
	writes bool
}

func (g *region) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, substatus string) {
		w.Header().Set("X-Ms-Substatus", substatus)
		w.WriteHeader(status)
	}
	kind, link := "docs", strings.Trim(r.URL.Path, "/")
	if strings.HasSuffix(link, "/docs") { // a feed: the link is its parent's
		link = strings.TrimSuffix(link, "/docs")
	}
	date := r.Header.Get("X-Ms-Date")
	if at, err := http.ParseTime(date); err != nil || time.Since(at).Abs() > 15*time.Minute {
		refuse(http.StatusForbidden, "")
		return
	}
	if given := []byte(r.Header.Get("Authorization")); subtle.ConstantTimeCompare(given, []byte(cosmosToken(g.key, r.Method, kind, link, date))) != 1 {
		refuse(http.StatusUnauthorized, "")
		return
	}
	query := r.Header.Get("X-Ms-Documentdb-Isquery") == "True"
	switch {
	case r.Header.Get("X-Ms-Version") == "":
		refuse(http.StatusBadRequest, "")
	case r.Method != http.MethodGet && !query && !g.writes:
		refuse(http.StatusForbidden, "3") // WriteForbidden
	case r.Header.Get("X-Ms-Session-Token") > fmt.Sprintf("0:-1#%d", g.newest.Load()):
		refuse(http.StatusNotFound, "1002") // ReadSessionNotAvailable
	case r.Header.Get("X-Ms-Documentdb-Partitionkey") == "" && !query:
		refuse(http.StatusBadRequest, "1001") // PartitionKeyMismatch
	default:
		_, _ = io.WriteString(w, `{"id":"17"}`)
	}
}

// cosmosToken returns the value of Authorization.
func cosmosToken(key []byte, method, kind, link, date string) string {
	text := strings.ToLower(method) + "\n" + kind + "\n" + link + "\n" + strings.ToLower(date) + "\n\n"
	return url.QueryEscape("type=master&ver=1.0&sig=" + base64.StdEncoding.EncodeToString(mac(key, text)))
}

func TestRegionsOfADatabase(t *testing.T) {
	west, east := &region{key: []byte("of the account"), writes: true}, &region{key: []byte("of the account")}
	west.newest.Store(5)
	east.newest.Store(5)
	s, far := serve(t, west), &met{t: t, next: east}
	westURL, eastURL := s.URL, away(t, far).URL
	base := base(t)

	reads := func(r *http.Request) bool {
		return r.Method == http.MethodGet || r.Header.Get("X-Ms-Documentdb-Isquery") == "True"
	}
	transport := hedge.New(base, hedge.WithHedgeable(reads), hedge.WithEndpoints(
		hedge.Endpoint{URL: westURL}, // https://shop-westeurope.documents.azure.com
		hedge.Endpoint{URL: eastURL, // https://shop-eastus.documents.azure.com: the same account and key
			Keep: []string{"Authorization", "X-Ms-Date", "X-Ms-*"}}))

	ask := func(rt http.RoundTripper, method, path, session string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			link, body := strings.TrimSuffix(strings.Trim(path, "/"), "/docs"), io.Reader(nil)
			date := time.Now().UTC().Format(http.TimeFormat)
			header := http.Header{"Authorization": {cosmosToken(west.key, method, "docs", link, date)}, "X-Ms-Date": {date}, "X-Ms-Version": {"2018-12-31"}}
			switch {
			case session == "query":
				header.Set("X-Ms-Documentdb-Isquery", "True")
				header.Set("Content-Type", "application/query+json")
				body = strings.NewReader(`{"query":"SELECT * FROM c"}`)
			default:
				header.Set("X-Ms-Documentdb-Partitionkey", `["17"]`)
				if header.Set("X-Ms-Session-Token", session); method == "POST" {
					body = strings.NewReader(`{"id":"17"}`)
				}
			}
			req, err := http.NewRequestWithContext(ctx, method, westURL+path, body)
			if err != nil {
				return "", err
			}
			req.Header = header
			return whole((&http.Client{Transport: rt}).Do(req))
		}
	}
	const document, feed = "/dbs/shop/colls/items/docs/17", "/dbs/shop/colls/items/docs"
	same(t, s, transport, ask(base, "GET", document, "0:-1#5"), ask(transport, "GET", document, "0:-1#5"))
	require.EqualValues(t, 1, far.n.Load())
	same(t, s, transport, ask(base, "POST", feed, "query"), ask(transport, "POST", feed, "query"))
	require.EqualValues(t, 2, far.n.Load())
	once(t, s, func(ctx context.Context) error {
		_, err := ask(transport, "POST", feed, "0:-1#5")(ctx)
		return err
	})
	require.EqualValues(t, 2, far.n.Load(), "a write goes to the first endpoint")

	// A region that lags says so with 404, which does not end the call: the first region answers, later.
	west.newest.Store(6)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	slow := roundTripper(func(r *http.Request) (*http.Response, error) {
		if strings.HasPrefix(westURL, r.URL.Scheme+"://"+r.URL.Host) {
			for far.n.Load() == 2 { // until the hedge was answered
				time.Sleep(time.Millisecond)
			}
			time.Sleep(5 * delay)
		}
		return base.RoundTrip(r)
	})
	lagging := hedge.New(slow, hedge.WithHedgeable(reads), hedge.WithEndpoints(
		hedge.Endpoint{URL: westURL}, hedge.Endpoint{URL: eastURL, Keep: []string{"Authorization", "X-Ms-Date", "X-Ms-*"}}))
	got, err := ask(lagging, "GET", document, "0:-1#6")(hedge.WithDelay(ctx, delay))
	require.NoError(t, err)
	assert.Equal(t, `{"id":"17"}`, got)
	assert.EqualValues(t, 3, far.n.Load())
	assert.EqualValues(t, 1, lagging.Snapshot().Stats.AnswersNotTaken)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// chat is a provider with the API of OpenAI.
type chat struct{ key, model string }

func (c chat) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model  string
		Stream bool
		Seed   json.Number
	}
	switch err := json.NewDecoder(r.Body).Decode(&q); {
	case r.Header.Get("Authorization") != "Bearer "+c.key:
		http.Error(w, `{"error":{"message":"Incorrect API key","code":"invalid_api_key"}}`, http.StatusUnauthorized)
		return
	case err != nil || !q.Stream || q.Seed != "9007199254740993":
		http.Error(w, `{"error":{"message":"bad request"}}`, http.StatusBadRequest)
		return
	case q.Model != c.model:
		http.Error(w, `{"error":{"message":"The model does not exist","code":"model_not_found"}}`, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, token := range []string{"We ", "have ", "three ", "lamps."} {
		fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", token)
		_ = http.NewResponseController(w).Flush()
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

func TestProvidersOfLanguageModels(t *testing.T) {
	s := serve(t, &met{t: t, next: chat{"key of the first", "small-1"}, secret: "key of the second"})
	s.late = true // the header comes at once
	far := &met{t: t, next: chat{"key of the second", "large-2"}, secret: "key of the first"}
	firstURL, secondURL := s.URL+"/v1", away(t, far).URL+"/openai/v1"
	base, secondKey := base(t), "key of the second"

	prepare := func(r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+secondKey)
		var body map[string]json.RawMessage // all but the model stays as it is written
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return err
		}
		body["model"] = json.RawMessage(`"large-2"`)
		changed, err := json.Marshal(body)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(changed)), int64(len(changed))
		return err
	}
	transport := hedge.New(base,
		hedge.WithEndpoints(
			hedge.Endpoint{URL: firstURL}, // https://api.openai.com/v1
			hedge.Endpoint{URL: secondURL, Cost: 3, Prepare: prepare, Drop: []string{"X-Stainless-*", "OpenAI-*"}}),
		hedge.WithRoute("POST /v1/chat/completions", hedge.Policy{Hedgeable: true, FirstByte: true}),
		hedge.WithMaxHedgesPerSecond(100.0/3600))

	params := openai.ChatCompletionNewParams{Model: "small-1", Seed: openai.Int(1<<53 + 1), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("How many lamps have we?")}}
	ask := func(rt http.RoundTripper) func(context.Context) (string, error) {
		client := openai.NewClient(option.WithBaseURL(firstURL), option.WithAPIKey("key of the first"), option.WithOrganization("org"),
			option.WithMaxRetries(0), option.WithHTTPClient(&http.Client{Transport: rt}))
		return func(ctx context.Context) (string, error) {
			var answer strings.Builder
			stream := client.Chat.Completions.NewStreaming(ctx, params)
			defer stream.Close()
			for stream.Next() {
				for _, choice := range stream.Current().Choices {
					answer.WriteString(choice.Delta.Content)
				}
			}
			return answer.String(), stream.Err()
		}
	}
	gone := s.gone.Load()
	assert.Equal(t, "We have three lamps.", same(t, s, transport, ask(base), ask(transport)))
	assert.EqualValues(t, 1, far.n.Load())
	require.Eventually(t, func() bool { return s.gone.Load() == gone+1 }, limit, time.Millisecond, "the loser is closed at once")
	assert.Equal(t, int64(1), transport.Snapshot().Stats.HedgesSent)

	// The cap: the next hedge in 36 seconds.
	before := far.n.Load()
	func() {
		defer s.slower()()
		ctx, cancel := context.WithTimeout(hedge.WithDelay(t.Context(), delay), 10*delay)
		defer cancel()
		_, err := ask(transport)(ctx)
		require.Error(t, err)
	}()
	assert.Equal(t, before, far.n.Load())
}
