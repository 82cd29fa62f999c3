package integration

import (
	"context"
	"net/http"
	"testing"

	"github.com/go-resty/resty/v2"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge"
)

func TestResty2(t *testing.T) {
	s := serve(t, http.HandlerFunc(catalog))
	base := base(t)
	plain := resty.New().SetTransport(base)

	transport := hedge.New(base)
	client := resty.New().SetTransport(transport)

	_, err := client.Transport()
	assert.Error(t, err, "SetTLSClientConfig, SetProxy and the like need it")
	fetch := func(c *resty.Client) func(context.Context) (stock, error) {
		return func(ctx context.Context) (stock, error) {
			resp, err := c.R().SetContext(ctx).SetResult(stock{}).Get(s.URL)
			if err != nil {
				return stock{}, err
			}
			return *resp.Result().(*stock), nil
		}
	}
	got := same(t, s, transport, fetch(plain), fetch(client))
	assert.Equal(t, stock{Items: []string{"book", "lamp"}}, got)

	once(t, s, func(ctx context.Context) error {
		_, err := client.R().SetContext(ctx).SetBody(got).Post(s.URL)
		return err
	})
}

// stock is what catalog answers.
type stock struct {
	Items []string `json:"items"`
}
