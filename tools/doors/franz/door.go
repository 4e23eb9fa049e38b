// franz-go produces numbers to a topic. See README.md above for the arguments.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
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
	var lock sync.Mutex
	// Idempotent, with acks of all, and retries without end: these are its defaults.
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]), kgo.ProducerBatchMaxBytes(4096), kgo.ProducerLinger(5*time.Millisecond))
	must(err)
	begin := time.Now()
	for at := range count {
		if at%20 == 0 {
			time.Sleep(time.Duration(at)*time.Second/time.Duration(perSecond) - time.Since(begin))
		}
		number := strconv.Itoa(first + at)
		record := &kgo.Record{
			Topic: os.Args[2], Key: []byte(strconv.Itoa((first + at) % 10)), Value: []byte(number),
			Headers: []kgo.RecordHeader{{Key: "n", Value: []byte(number)}},
		}
		client.Produce(context.Background(), record, func(done *kgo.Record, err error) {
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				fmt.Fprintln(acked, number, "failed", err)
			} else {
				fmt.Fprintln(acked, number, done.Partition, done.Offset)
			}
		})
	}
	must(client.Flush(context.Background()))
	client.Close()
	must(acked.Flush())
}
