package integration

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge"
)

func TestDynamoDB(t *testing.T) {
	const (
		stock  = `{"name":{"S":"lamp"},"count":{"N":"3"}}`
		prefix = "DynamoDB_20120810."
	)
	creds := credentials.NewStaticCredentialsProvider("key", "secret", "")
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, signature(t, r, creds.Value), r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		switch strings.TrimPrefix(r.Header.Get("X-Amz-Target"), prefix) {
		case "GetItem":
			fmt.Fprintf(w, `{"Item":%s}`, stock)
		case "BatchGetItem":
			fmt.Fprintf(w, `{"Responses":{"shop":[%s]}}`, stock)
		case "Query", "Scan":
			fmt.Fprintf(w, `{"Items":[%s],"Count":1}`, stock)
		default:
			fmt.Fprint(w, `{}`)
		}
	}))
	cfg := aws.Config{Region: "eu-central-1", BaseEndpoint: aws.String(s.URL), Credentials: creds}
	own := awshttp.NewBuildableClient().GetTransport() // the default of the client
	defer own.CloseIdleConnections()
	base := numbered{own}
	plain := dynamodb.NewFromConfig(cfg, func(o *dynamodb.Options) { o.HTTPClient = &http.Client{Transport: base} })

	reads := func(r *http.Request) bool {
		switch r.Header.Get("X-Amz-Target") {
		case "DynamoDB_20120810.GetItem", "DynamoDB_20120810.BatchGetItem", "DynamoDB_20120810.Query", "DynamoDB_20120810.Scan":
			return true
		}
		return false
	}
	operation := func(ctx context.Context, host, _ string) string {
		return host + " " + awsmiddleware.GetOperationName(ctx)
	}
	transport := hedge.New(base, hedge.WithHedgeable(reads), hedge.WithKeyFunc(operation))
	cfg.HTTPClient = &http.Client{Transport: transport}
	client := dynamodb.NewFromConfig(cfg)

	table := aws.String("shop")
	lamp := map[string]types.AttributeValue{"name": &types.AttributeValueMemberS{Value: "lamp"}}
	// count returns how many lamps an answer says that there are.
	count := func(item map[string]types.AttributeValue) (string, error) {
		n, ok := item["count"].(*types.AttributeValueMemberN)
		if !ok {
			return "", fmt.Errorf("no count in %v", item)
		}
		return n.Value, nil
	}
	for name, read := range map[string]func(context.Context, *dynamodb.Client) (string, error){
		"GetItem": func(ctx context.Context, c *dynamodb.Client) (string, error) {
			out, err := c.GetItem(ctx, &dynamodb.GetItemInput{TableName: table, Key: lamp})
			if err != nil {
				return "", err
			}
			return count(out.Item)
		},
		"BatchGetItem": func(ctx context.Context, c *dynamodb.Client) (string, error) {
			keys := types.KeysAndAttributes{Keys: []map[string]types.AttributeValue{lamp}}
			out, err := c.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{RequestItems: map[string]types.KeysAndAttributes{"shop": keys}})
			if err != nil {
				return "", err
			}
			return count(out.Responses["shop"][0])
		},
		"Query": func(ctx context.Context, c *dynamodb.Client) (string, error) {
			out, err := c.Query(ctx, &dynamodb.QueryInput{TableName: table})
			if err != nil {
				return "", err
			}
			return count(out.Items[0])
		},
		"Scan": func(ctx context.Context, c *dynamodb.Client) (string, error) {
			out, err := c.Scan(ctx, &dynamodb.ScanInput{TableName: table})
			if err != nil {
				return "", err
			}
			return count(out.Items[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			call := func(c *dynamodb.Client) func(context.Context) (string, error) {
				return func(ctx context.Context) (string, error) { return read(ctx, c) }
			}
			assert.Equal(t, "3", same(t, s, transport, call(plain), call(client)))
			assert.True(t, slices.ContainsFunc(transport.Snapshot().Keys, func(k hedge.KeySnapshot) bool {
				return k.Host == s.Listener.Addr().String()+" "+name
			}), "%s has no latency of its own", name)
		})
	}
	for name, write := range map[string]func(context.Context) error{
		"PutItem": func(ctx context.Context) error {
			_, err := client.PutItem(ctx, &dynamodb.PutItemInput{TableName: table, Item: lamp})
			return err
		},
		"UpdateItem": func(ctx context.Context) error {
			_, err := client.UpdateItem(ctx, &dynamodb.UpdateItemInput{TableName: table, Key: lamp})
			return err
		},
		"DeleteItem": func(ctx context.Context) error {
			_, err := client.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: table, Key: lamp})
			return err
		},
		"TransactWriteItems": func(ctx context.Context) error {
			item := types.TransactWriteItem{Delete: &types.Delete{TableName: table, Key: lamp}}
			_, err := client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{item}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { once(t, s, write) })
	}
}

// signature returns the Authorization header that a request must have: the service signs the headers
// that the client says it signed.
func signature(t *testing.T, r *http.Request, creds aws.Credentials) string {
	_, signed, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	signed, _, _ = strings.Cut(signed, ",")
	again := r.Clone(r.Context())
	again.URL.Host, again.Header = r.Host, make(http.Header)
	for name := range strings.SplitSeq(signed, ";") {
		if v := r.Header.Get(name); v != "" {
			again.Header.Set(name, v)
		}
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	assert.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	assert.NoError(t, err)
	err = v4.NewSigner().SignHTTP(t.Context(), creds, again, fmt.Sprintf("%x", sha256.Sum256(body)), "dynamodb", "eu-central-1", at)
	assert.NoError(t, err)
	return again.Header.Get("Authorization")
}
