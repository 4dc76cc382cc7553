package sim

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"drover.dev/lab/vsphere-sim/internal/nfc"
)

// sendBytes is how much of a file goes to the connection at once.
const sendBytes = 256 << 10

var sendBuffers = sync.Pool{New: func() any { b := make([]byte, sendBytes); return &b }}

// serveFolder gives files of datastores: /folder/DIR/FILE?dcPath=DC&dsName=DATASTORE.
func (s *Sim) serveFolder(w http.ResponseWriter, r *http.Request, conn *connection) {
	conn.endpoint.requests.Add(1)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "the simulator's datastores are read-only", http.StatusForbidden)
		return
	}
	if !s.mayReadAt(r, conn.endpoint) {
		w.Header().Set("WWW-Authenticate", `Basic realm="VMware HTTP server"`)
		http.Error(w, "not authenticated", http.StatusUnauthorized)
		return
	}
	name, found := s.fileOf(r, conn.endpoint)
	if !found {
		http.NotFound(w, r)
		return
	}
	unlock, free := s.locks.Lock(name, nfc.Download)
	if !free || s.store.Locked(name) {
		if free {
			unlock()
		}
		http.Error(w, "file is locked", http.StatusInternalServerError)
		return
	}
	defer unlock()
	file, err := os.Open(name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.IsDir() {
		http.NotFound(w, r)
		return
	}
	s.sleep(r.Context(), durationOf(s.shape.latency.Load()))
	s.sendFile(w, r, conn, file, info)
}

func (s *Sim) mayReadAt(r *http.Request, e *endpoint) bool {
	if e.service != "host" {
		return s.sessions.mayRead(r)
	}
	if _, ok := s.sessions.atHost(r, e.host, false); ok {
		return true
	}
	user, password, given := r.BasicAuth()
	if given && same(user, e.host.Credentials.Username) && same(password, e.host.Credentials.Password) {
		return true
	}
	return s.tickets.redeem(r)
}

// fileOf finds the real file that the request names.
func (s *Sim) fileOf(r *http.Request, e *endpoint) (string, bool) {
	query := r.URL.Query()
	datacenter := s.inv.Datacenter
	if e.service != "vcenter" {
		datacenter = "ha-datacenter"
	}
	if given := strings.Trim(query.Get("dcPath"), "/"); given != "" && given != datacenter {
		return "", false
	}
	dir, known := s.datastores[query.Get("dsName")]
	below := strings.TrimPrefix(r.URL.Path, "/folder/")
	if !known || below == r.URL.Path {
		return "", false
	}
	clean := path.Clean("/" + below) // Nothing above the datastore can be named so.
	return filepath.Join(dir, filepath.FromSlash(clean)), true
}

// sendFile answers with the file or the range of it that is asked for. Several ranges at once
// are rare enough to leave to the standard library.
func (s *Sim) sendFile(w http.ResponseWriter, r *http.Request, conn *connection, file *os.File, info os.FileInfo) {
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Accept-Ranges", "bytes")
	header.Set("Last-Modified", info.ModTime().UTC().Format(http.TimeFormat))
	spec := r.Header.Get("Range")
	if strings.Contains(spec, ",") {
		counter := &countingWriter{ResponseWriter: w}
		http.ServeContent(counter, r, "", info.ModTime(), file)
		conn.endpoint.bytes.Add(counter.sent)
		return
	}
	start, length, status := int64(0), info.Size(), http.StatusOK
	if spec != "" {
		var err error
		start, length, err = parseRange(spec, info.Size())
		if err != nil {
			header.Set("Content-Range", fmt.Sprintf("bytes */%d", info.Size()))
			http.Error(w, err.Error(), http.StatusRequestedRangeNotSatisfiable)
			return
		}
		header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, start+length-1, info.Size()))
		status = http.StatusPartialContent
	}
	header.Set("Content-Length", strconv.FormatInt(length, 10))
	if faulty, ok := w.(*faultWriter); ok {
		faulty.position = start // Faults by offset mean the offset in the file.
	}
	w.WriteHeader(status)
	if r.Method == http.MethodGet {
		s.send(w, r, conn, file, start, length)
	}
}

// send copies a span of file to w.
func (s *Sim) send(w io.Writer, r *http.Request, conn *connection, file *os.File, start, length int64) {
	pooled := sendBuffers.Get().(*[]byte)
	defer sendBuffers.Put(pooled)
	sent := int64(0)
	for sent < length {
		piece := (*pooled)[:min(length-sent, int64(s.shape.pieceBytes(sendBytes)))]
		n, err := file.ReadAt(piece, start+sent)
		if n == 0 && err != nil {
			// The headers promised more, so only a broken connection tells the truth.
			panic(http.ErrAbortHandler)
		}
		s.paceBytes(r.Context(), conn, n)
		written, err := w.Write(piece[:n])
		sent += int64(written)
		conn.endpoint.bytes.Add(int64(written))
		if err != nil || s.stopped.Err() != nil {
			return
		}
	}
}

var errRange = errors.New("invalid range")

// parseRange reads a header with one range, RFC 9110 section 14.
func parseRange(spec string, size int64) (start, length int64, err error) {
	from, to, found := strings.Cut(strings.TrimPrefix(spec, "bytes="), "-")
	if !found || !strings.HasPrefix(spec, "bytes=") {
		return 0, 0, errRange
	}
	if from == "" { // the last bytes
		n, err := strconv.ParseInt(to, 10, 64)
		if err != nil || n <= 0 || size == 0 {
			return 0, 0, errRange
		}
		n = min(n, size)
		return size - n, n, nil
	}
	start, err = strconv.ParseInt(from, 10, 64)
	if err != nil || start < 0 || start >= size {
		return 0, 0, errRange
	}
	end := size - 1
	if to != "" {
		end, err = strconv.ParseInt(to, 10, 64)
		if err != nil || end < start {
			return 0, 0, errRange
		}
	}
	return start, min(end, size-1) - start + 1, nil
}

type countingWriter struct {
	http.ResponseWriter
	sent int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.sent += int64(n)
	return n, err
}
