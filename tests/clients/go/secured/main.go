// A franz-go producer over TLS and SASL: writes records to a topic, and prints how many were acknowledged.
//
//	secured ADDRESS PROTOCOL MECHANISM USER SECRET CA-FILE CERTIFICATE-FILE TOPIC RECORDS
//
// SECRET is a password, or for OAUTHBEARER a token. An empty text leaves MECHANISM or CERTIFICATE-FILE out.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func check(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func mechanism(name, user, secret string) sasl.Mechanism {
	switch name {
	case "PLAIN":
		return plain.Auth{User: user, Pass: secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: secret}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: secret}.AsSha512Mechanism()
	}
	return oauth.Auth{Token: secret}.AsMechanism()
}

func main() {
	address, protocol, name, user, secret := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	caFile, certificateFile, topic := os.Args[6], os.Args[7], os.Args[8]
	records, err := strconv.Atoi(os.Args[9])
	check(err)
	options := []kgo.Opt{
		kgo.SeedBrokers(address), kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(0),
		kgo.RecordDeliveryTimeout(20 * time.Second),
	}
	if strings.HasSuffix(protocol, "SSL") {
		pem, err := os.ReadFile(caFile)
		check(err)
		config := &tls.Config{RootCAs: x509.NewCertPool()}
		config.RootCAs.AppendCertsFromPEM(pem)
		if certificateFile != "" {
			pair, err := tls.LoadX509KeyPair(certificateFile, certificateFile)
			check(err)
			config.Certificates = []tls.Certificate{pair}
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if name != "" {
		options = append(options, kgo.SASL(mechanism(name, user, secret)))
	}
	client, err := kgo.NewClient(options...)
	check(err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for number := 0; number < records; number++ {
		check(client.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr())
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("acknowledged", records)
}
