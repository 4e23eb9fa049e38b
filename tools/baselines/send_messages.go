// A client in Go: messages of 120 bytes.
//
//	send_messages SOCKET COUNT BATCH
//
// BATCH is the most messages of a datagram; with 1 there are no batches. Prints one JSON line: the seconds that
// it took.
package main

import (
	"encoding/binary"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"time"
)

const (
	maxDatagram = 65536
	batchHead   = 10
)

func sized(m, data []byte) []byte {
	if data == nil {
		return binary.BigEndian.AppendUint32(m, 0xffffffff)
	}
	return append(binary.BigEndian.AppendUint32(m, uint32(len(data))), data...)
}

// add writes a message behind m.
func add(m []byte, topic string, key, value []byte) []byte {
	start := len(m)
	m = append(m, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0)
	m = append(binary.BigEndian.AppendUint16(m, uint16(len(topic))), topic...)
	m = binary.BigEndian.AppendUint64(m, uint64(time.Now().UnixMilli()))
	m = sized(sized(m, key), value)
	binary.BigEndian.PutUint32(m[start:], uint32(len(m)-start))
	return m
}

func send(bruce net.Conn, data []byte) {
	if _, err := bruce.Write(data); err != nil {
		log.Fatal(err)
	}
}

func sendBatch(bruce net.Conn, data []byte) {
	binary.BigEndian.PutUint32(data, uint32(len(data)))
	send(bruce, data)
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: send_messages SOCKET COUNT BATCH")
	}
	bruce, err := net.Dial("unixgram", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	wanted, _ := strconv.Atoi(os.Args[2])
	most, _ := strconv.Atoi(os.Args[3])
	value, room := make([]byte, 120), make([]byte, 0, maxDatagram)
	size := len(add(nil, "load", nil, value))
	begun := time.Now()
	for sent, held := 0, 0; sent < wanted; sent++ {
		if most == 1 {
			send(bruce, add(room[:0], "load", nil, value))
			continue
		}
		if held == 0 {
			room = append(room[:0], 0, 0, 0, 0, 1, 3, 0, 0, 0, 0)
		}
		room = add(room, "load", nil, value)
		held++
		if held == most || len(room)+size > maxDatagram || sent == wanted-1 {
			sendBatch(bruce, room)
			held = 0
		}
	}
	fmt.Printf("{\"seconds\": %f}\n", time.Since(begun).Seconds())
}
