// Copies one topic to another in transactions, with the offsets that it has read: until it is killed.
//
// BROKERS SOURCE TARGET GROUP TRANSACTIONAL_ID. A tenth of the transactions is aborted at random. After
// an error that ends the producer it begins anew under the same transactional id.
package main

import (
	"context"
	"log"
	"math/rand"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const inATransaction = 20

func main() {
	for {
		if err := copyUntilError(os.Args[1:]); err != nil {
			log.Println("begins anew:", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func copyUntilError(words []string) error {
	brokers, source, target, group, id := words[0], words[1], words[2], words[3], words[4]
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(brokers, ",")...),
		kgo.TransactionalID(id),
		kgo.TransactionTimeout(60*time.Second),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(6*time.Second),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	for {
		fetches := session.PollRecords(context.Background(), inATransaction)
		for _, failed := range fetches.Errors() {
			log.Println("fetch:", failed.Err)
		}
		if fetches.Empty() {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		promise := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			copied := &kgo.Record{Topic: target, Value: record.Value}
			session.Produce(context.Background(), copied, promise.Promise())
		})
		wanted := promise.Err() == nil && rand.Intn(10) > 0
		if _, err := session.End(context.Background(), kgo.TransactionEndTry(wanted)); err != nil {
			return err
		}
	}
}
