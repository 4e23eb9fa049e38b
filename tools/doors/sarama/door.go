// sarama produces numbers to a topic. See README.md above for the arguments.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	first, _ := strconv.Atoi(os.Args[3])
	count, _ := strconv.Atoi(os.Args[4])
	perSecond := 1_000_000
	if len(os.Args) > 6 {
		perSecond, _ = strconv.Atoi(os.Args[6])
	}
	file, err := os.Create(os.Args[5])
	must(err)
	acked := bufio.NewWriter(file)
	config := sarama.NewConfig()
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	// As sarama demands of an idempotent producer.
	config.Net.MaxOpenRequests = 1
	config.Producer.Flush.Messages, config.Producer.Flush.MaxMessages = 100, 100
	config.Producer.Flush.Frequency = 5 * time.Millisecond
	config.Producer.Retry.Max, config.Producer.Retry.Backoff = 1200, 100*time.Millisecond
	config.Metadata.Retry.Max = 480
	config.Producer.Return.Successes = true
	producer, err := sarama.NewAsyncProducer([]string{os.Args[1]}, config)
	must(err)
	var noting, answered sync.WaitGroup
	var lock sync.Mutex
	note := func(outcome ...any) {
		lock.Lock()
		defer lock.Unlock()
		fmt.Fprintln(acked, outcome...)
		answered.Done()
	}
	answered.Add(count)
	noting.Add(2)
	go func() {
		defer noting.Done()
		for done := range producer.Successes() {
			note(done.Metadata, done.Partition, done.Offset)
		}
	}()
	go func() {
		defer noting.Done()
		for failed := range producer.Errors() {
			note(failed.Msg.Metadata, "failed", failed.Err)
		}
	}()
	begin := time.Now()
	for at := range count {
		if at%20 == 0 {
			time.Sleep(time.Duration(at)*time.Second/time.Duration(perSecond) - time.Since(begin))
		}
		number := strconv.Itoa(first + at)
		producer.Input() <- &sarama.ProducerMessage{
			Topic: os.Args[2], Key: sarama.StringEncoder(strconv.Itoa((first + at) % 10)),
			Value: sarama.StringEncoder(number), Metadata: number,
			Headers: []sarama.RecordHeader{{Key: []byte("n"), Value: []byte(number)}},
		}
	}
	// A producer that is closing gives up what it would send again.
	answered.Wait()
	producer.AsyncClose()
	noting.Wait()
	must(acked.Flush())
}
