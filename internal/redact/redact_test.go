package redact_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/redact"
)

func TestURLHasNoUserInformationAndNoQuery(t *testing.T) {
	for raw, want := range map[string]string{
		"":                                                     "",
		"https://shop.test:8443/a/b#part":                      "https://shop.test:8443/a/b#part",
		"https://reader:hunter2@shop.test/a":                   "https://xxxxx@shop.test/a",
		"https://token@shop.test/a":                            "https://xxxxx@shop.test/a",
		"https://reader:hun/ter2@shop.test/a":                  "https://xxxxx@shop.test/a",
		"https://reader:hun@ter2@shop.test/a":                  "https://xxxxx@shop.test/a",
		"https://reader:hun?ter2@shop.test/a":                  "https://xxxxx@shop.test/a",
		"https://reader:hun#ter2@shop.test/a":                  "https://xxxxx@shop.test/a",
		"reader:hunter2@shop.test/://@a":                       "xxxxx@a",
		"reader:hunter2@shop.test":                             "xxxxx@shop.test",
		"https://shop.test/a?X-Amz-Signature=hunter2&x=1#part": "https://shop.test/a?xxxxx",
		"https://shop.test/a?to=reader@hunter2":                "https://xxxxx@hunter2",
		"https://%zz:hunter2@shop.test/":                       "https://xxxxx@shop.test/",
	} {
		assert.Equal(t, want, redact.URL(raw), raw)
	}
}
